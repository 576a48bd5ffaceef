// Stands in for the verification of signatures, whose libraries are many: policies and signed caches reach it, and the
// development cluster has neither. Whatever asks for it is refused.
module github.com/moby/policy-helpers

go 1.26.0

require (
	github.com/opencontainers/go-digest v1.0.0
	github.com/opencontainers/image-spec v1.1.1
	github.com/sigstore/sigstore-go v1.2.2
)
