// Package blockblob has what BuildKit's cache in Azure names of the client that writes blobs: the development cluster
// caches nothing there.
package blockblob

import (
	"context"
	"io"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/internal/absent"
)

// Client is no client.
type Client struct{}

// UploadOptions are not looked at.
type UploadOptions struct{}

// UploadResponse comes only with an error.
type UploadResponse struct{}

// UploadStreamOptions are not looked at.
type UploadStreamOptions struct {
	AccessConditions *blob.AccessConditions
	BlockSize        int64
	Concurrency      int
}

// UploadStreamResponse comes only with an error.
type UploadStreamResponse struct{}

// DownloadStream fails.
func (*Client) DownloadStream(context.Context, *blob.DownloadStreamOptions) (blob.DownloadStreamResponse, error) {
	return blob.DownloadStreamResponse{}, absent.Err
}

// Upload fails.
func (*Client) Upload(context.Context, io.ReadSeekCloser, *UploadOptions) (UploadResponse, error) {
	return UploadResponse{}, absent.Err
}

// UploadStream fails.
func (*Client) UploadStream(context.Context, io.Reader, *UploadStreamOptions) (UploadStreamResponse, error) {
	return UploadStreamResponse{}, absent.Err
}
