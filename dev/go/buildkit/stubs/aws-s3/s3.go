// Package s3 has what BuildKit's cache in S3 names of the S3 client: the development cluster caches nothing there.
package s3

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
)

var errLeftOut = errors.New("left out of this build: the development cluster caches nothing in S3")

// Client is no client.
type Client struct{}

// Options are not looked at.
type Options struct {
	APIOptions       []func(*middleware.Stack) error
	BaseEndpoint     *string
	Credentials      any
	RetryMaxAttempts int
	RetryMode        aws.RetryMode
	UsePathStyle     bool
}

// NewFromConfig returns a client whose every call fails.
func NewFromConfig(aws.Config, ...func(*Options)) *Client { return &Client{} }

// GetObjectInput is not looked at.
type GetObjectInput struct {
	Bucket, Key, Range *string
}

// GetObjectOutput is never made.
type GetObjectOutput struct {
	Body io.ReadCloser
}

// GetObject fails.
func (*Client) GetObject(context.Context, *GetObjectInput, ...func(*Options)) (*GetObjectOutput, error) {
	return nil, errLeftOut
}

// HeadObjectInput is not looked at.
type HeadObjectInput struct {
	Bucket, Key *string
}

// HeadObjectOutput is never made.
type HeadObjectOutput struct {
	LastModified  *time.Time
	ContentLength *int64
}

// HeadObject fails.
func (*Client) HeadObject(context.Context, *HeadObjectInput, ...func(*Options)) (*HeadObjectOutput, error) {
	return nil, errLeftOut
}

// CopyObjectInput is not looked at.
type CopyObjectInput struct {
	Bucket, CopySource, Key *string
	Metadata                map[string]string
	MetadataDirective       string
}

// CopyObjectOutput is never made.
type CopyObjectOutput struct{}

// CopyObject fails.
func (*Client) CopyObject(context.Context, *CopyObjectInput, ...func(*Options)) (*CopyObjectOutput, error) {
	return nil, errLeftOut
}

// CreateMultipartUploadInput is not looked at.
type CreateMultipartUploadInput struct {
	Bucket, Key *string
}

// CreateMultipartUploadOutput is never made.
type CreateMultipartUploadOutput struct {
	UploadId *string
}

// CreateMultipartUpload fails.
func (*Client) CreateMultipartUpload(
	context.Context, *CreateMultipartUploadInput, ...func(*Options),
) (*CreateMultipartUploadOutput, error) {
	return nil, errLeftOut
}

// AbortMultipartUploadInput is not looked at.
type AbortMultipartUploadInput struct {
	Bucket, Key, UploadId *string
}

// AbortMultipartUploadOutput is never made.
type AbortMultipartUploadOutput struct{}

// AbortMultipartUpload fails.
func (*Client) AbortMultipartUpload(
	context.Context, *AbortMultipartUploadInput, ...func(*Options),
) (*AbortMultipartUploadOutput, error) {
	return nil, errLeftOut
}

// UploadPartCopyInput is not looked at.
type UploadPartCopyInput struct {
	Bucket, CopySource, CopySourceRange, Key, UploadId *string
	PartNumber                                         *int32
}

// UploadPartCopyOutput is never made.
type UploadPartCopyOutput struct {
	CopyPartResult *types.CopyPartResult
}

// UploadPartCopy fails.
func (*Client) UploadPartCopy(context.Context, *UploadPartCopyInput, ...func(*Options)) (*UploadPartCopyOutput, error) {
	return nil, errLeftOut
}

// CompleteMultipartUploadInput is not looked at.
type CompleteMultipartUploadInput struct {
	Bucket, Key, UploadId *string
	MultipartUpload       *types.CompletedMultipartUpload
}

// CompleteMultipartUploadOutput is never made.
type CompleteMultipartUploadOutput struct{}

// CompleteMultipartUpload fails.
func (*Client) CompleteMultipartUpload(
	context.Context, *CompleteMultipartUploadInput, ...func(*Options),
) (*CompleteMultipartUploadOutput, error) {
	return nil, errLeftOut
}
