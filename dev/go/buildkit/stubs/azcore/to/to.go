// Package to has what BuildKit's cache in Azure names of a package of the Azure clients' core, which is absent.
package to

// Ptr returns a pointer to the value.
func Ptr[T any](value T) *T { return &value }
