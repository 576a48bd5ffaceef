// Package image has what BuildKit names of the search for an image's signatures: this build finds none, and says so.
package image

import (
	"context"
	"errors"

	"github.com/opencontainers/image-spec/specs-go/v1"
)

var errLeftOut = errors.New("left out of this build: the development cluster verifies no signatures")

// ReferrersProvider is not asked.
type ReferrersProvider any

// Manifest is never made.
type Manifest struct {
	v1.Descriptor
}

// SignatureChain is never made.
type SignatureChain struct {
	AttestationManifest, ImageManifest, SignatureManifest *Manifest
}

// OCIManifest fails.
func (*SignatureChain) OCIManifest(context.Context, *Manifest) (*v1.Manifest, error) {
	return nil, errLeftOut
}

// ReadBlob fails.
func ReadBlob(context.Context, ReferrersProvider, v1.Descriptor) ([]byte, error) {
	return nil, errLeftOut
}

// ResolveSignatureChain fails.
func ResolveSignatureChain(
	context.Context, ReferrersProvider, v1.Descriptor, *v1.Platform,
) (*SignatureChain, error) {
	return nil, errLeftOut
}
