// Package container has what BuildKit's cache in Azure names of the client of a container of blobs: the development
// cluster caches nothing there.
package container

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/internal/absent"
)

// Client is no client.
type Client struct{}

// CreateOptions are not looked at.
type CreateOptions struct{}

// CreateResponse comes only with an error.
type CreateResponse struct{}

// GetPropertiesOptions are not looked at.
type GetPropertiesOptions struct{}

// GetPropertiesResponse comes only with an error.
type GetPropertiesResponse struct{}

// Create fails.
func (*Client) Create(context.Context, *CreateOptions) (CreateResponse, error) {
	return CreateResponse{}, absent.Err
}

// GetProperties fails.
func (*Client) GetProperties(context.Context, *GetPropertiesOptions) (GetPropertiesResponse, error) {
	return GetPropertiesResponse{}, absent.Err
}

// NewBlobClient returns a client whose every call fails.
func (*Client) NewBlobClient(string) *blob.Client { return &blob.Client{} }

// NewBlockBlobClient returns a client whose every call fails.
func (*Client) NewBlockBlobClient(string) *blockblob.Client { return &blockblob.Client{} }
