// Package types has what BuildKit's cache in S3 names of the S3 client's types, for the client that never answers.
package types

// NotFound is an error that never occurs.
type NotFound struct{}

// Error names it.
func (*NotFound) Error() string { return "not found" }

// NoSuchKey is an error that never occurs.
type NoSuchKey struct{}

// Error names it.
func (*NoSuchKey) Error() string { return "no such key" }

// CompletedPart names a part.
type CompletedPart struct {
	ETag       *string
	PartNumber *int32
}

// CompletedMultipartUpload names parts.
type CompletedMultipartUpload struct {
	Parts []CompletedPart
}

// CopyPartResult names a part.
type CopyPartResult struct {
	ETag *string
}
