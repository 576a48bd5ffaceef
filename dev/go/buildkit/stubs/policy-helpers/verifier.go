// Package policy has what BuildKit names of the verification of signatures: this build verifies none, and says so.
package policy

import (
	"context"
	"errors"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
)

var errLeftOut = errors.New("left out of this build: the development cluster verifies no signatures")

// Config is not looked at.
type Config struct {
	RequireOnline bool
	StateDir      string
}

// Verifier is never made.
type Verifier struct{}

// ArtifactVerifyOpt is not looked at.
type ArtifactVerifyOpt struct{}

// SignatureInfo is never made.
type SignatureInfo struct {
	Signer     *certificate.Summary
	Timestamps []Timestamp
}

// Timestamp is never made.
type Timestamp struct {
	Type string
}

// NewVerifier fails.
func NewVerifier(Config) (*Verifier, error) { return nil, errLeftOut }

// WithSLSANotRequired changes nothing.
func WithSLSANotRequired() ArtifactVerifyOpt { return ArtifactVerifyOpt{} }

// VerifyArtifact fails.
func (*Verifier) VerifyArtifact(
	context.Context, digest.Digest, []byte, ...ArtifactVerifyOpt,
) (*SignatureInfo, error) {
	return nil, errLeftOut
}
