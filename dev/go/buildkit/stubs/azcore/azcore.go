// Package azcore has what BuildKit's cache in Azure names of the Azure clients' core: those clients are absent.
package azcore

// ETag is a version of a blob.
type ETag string

// ETagAny is any version.
const ETagAny ETag = "*"
