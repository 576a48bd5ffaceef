// Package aws has what BuildKit's cache in S3 names of the AWS client's core: the clients it would configure are
// absent.
package aws

// RequestChecksumCalculation says when requests carry a checksum.
type RequestChecksumCalculation int

// RequestChecksumCalculationWhenRequired is the one that is named.
const RequestChecksumCalculationWhenRequired RequestChecksumCalculation = 1

// RetryMode names a way to retry.
type RetryMode string

// The modes that a cache can be given.
const (
	RetryModeStandard RetryMode = "standard"
	RetryModeAdaptive RetryMode = "adaptive"
)

// Config holds nothing.
type Config struct{}

// String returns a pointer to the text.
func String(text string) *string { return &text }
