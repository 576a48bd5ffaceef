// Package azblob has what BuildKit's cache in Azure names of the client of blobs: the development cluster caches
// nothing there.
package azblob

import (
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/internal/absent"
)

// Client is never made.
type Client struct{}

// ClientOptions are not looked at.
type ClientOptions struct{}

// ServiceClient is no client.
type ServiceClient struct{}

// SharedKeyCredential is never made.
type SharedKeyCredential struct{}

// NewSharedKeyCredential fails.
func NewSharedKeyCredential(string, string) (*SharedKeyCredential, error) { return nil, absent.Err }

// NewClient fails.
func NewClient(string, any, *ClientOptions) (*Client, error) { return nil, absent.Err }

// NewClientWithSharedKeyCredential fails.
func NewClientWithSharedKeyCredential(string, *SharedKeyCredential, *ClientOptions) (*Client, error) {
	return nil, absent.Err
}

// ServiceClient returns a client whose containers fail.
func (*Client) ServiceClient() *ServiceClient { return &ServiceClient{} }

// NewContainerClient returns a client whose every call fails.
func (*ServiceClient) NewContainerClient(string) *container.Client { return &container.Client{} }
