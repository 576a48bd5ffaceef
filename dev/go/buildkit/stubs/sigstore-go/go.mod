// Stands in for sigstore: BuildKit names a type of it where it would verify signatures of a cache in GitHub Actions,
// and the development cluster caches nothing there.
module github.com/sigstore/sigstore-go

go 1.26.0
