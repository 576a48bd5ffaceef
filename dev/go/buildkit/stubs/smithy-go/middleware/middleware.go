// Package middleware has what BuildKit's cache in S3 names of the AWS client's steps: no client is there to take them.
package middleware

import "errors"

// Stack has the one step that is named.
type Stack struct {
	Finalize *FinalizeStep
}

// FinalizeStep is no step.
type FinalizeStep struct{}

// Remove fails.
func (*FinalizeStep) Remove(string) (any, error) {
	return nil, errors.New("left out of this build: the development cluster caches nothing in S3")
}
