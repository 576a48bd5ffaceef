// Package azidentity has what BuildKit's cache in Azure names of the Azure clients' sign-in, which never succeeds.
package azidentity

import "errors"

// DefaultAzureCredential is never made.
type DefaultAzureCredential struct{}

// DefaultAzureCredentialOptions are not looked at.
type DefaultAzureCredentialOptions struct{}

// NewDefaultAzureCredential fails.
func NewDefaultAzureCredential(*DefaultAzureCredentialOptions) (*DefaultAzureCredential, error) {
	return nil, errors.New("left out of this build: the development cluster caches nothing in Azure")
}
