// Package types has what kube-router names of the EC2 client's types.
package types

// AttributeBooleanValue is a value that may be missing.
type AttributeBooleanValue struct {
	Value *bool
}
