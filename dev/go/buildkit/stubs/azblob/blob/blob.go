// Package blob has what BuildKit's cache in Azure names of the client of one blob: the development cluster caches
// nothing there.
package blob

import (
	"context"
	"io"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/internal/absent"
)

// Client is no client.
type Client struct{}

// AccessConditions are not looked at.
type AccessConditions struct {
	ModifiedAccessConditions *ModifiedAccessConditions
}

// ModifiedAccessConditions are not looked at.
type ModifiedAccessConditions struct {
	IfNoneMatch *azcore.ETag
}

// DownloadStreamOptions are not looked at.
type DownloadStreamOptions struct{}

// DownloadStreamResponse comes only with an error.
type DownloadStreamResponse struct {
	Body io.ReadCloser
}

// GetPropertiesOptions are not looked at.
type GetPropertiesOptions struct{}

// GetPropertiesResponse comes only with an error.
type GetPropertiesResponse struct{}

// GetProperties fails.
func (*Client) GetProperties(context.Context, *GetPropertiesOptions) (GetPropertiesResponse, error) {
	return GetPropertiesResponse{}, absent.Err
}
