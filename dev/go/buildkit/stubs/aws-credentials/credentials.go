// Package credentials has what BuildKit's cache in S3 names of the AWS client's credentials: no client is there to use
// them.
package credentials

// StaticCredentialsProvider provides nothing.
type StaticCredentialsProvider struct{}

// NewStaticCredentialsProvider drops what it is given.
func NewStaticCredentialsProvider(string, string, string) StaticCredentialsProvider {
	return StaticCredentialsProvider{}
}
