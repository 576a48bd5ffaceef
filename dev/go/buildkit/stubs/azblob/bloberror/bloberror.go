// Package bloberror has what BuildKit's cache in Azure names of the errors of blobs, none of which occurs where every
// call fails.
package bloberror

// Code names an error.
type Code string

// The codes that are named.
const (
	BlobAlreadyExists Code = "BlobAlreadyExists"
	BlobNotFound      Code = "BlobNotFound"
	ContainerNotFound Code = "ContainerNotFound"
)

// HasCode is true of no error, so none is taken for a blob that is there, or that is missing.
func HasCode(error, ...Code) bool { return false }
