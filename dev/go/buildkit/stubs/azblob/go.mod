// Stands in for the client of Azure's blobs, which only BuildKit's caches in Azure and in GitHub Actions need: the
// development cluster caches nothing in either.
module github.com/Azure/azure-sdk-for-go/sdk/storage/azblob

go 1.26.0

require github.com/Azure/azure-sdk-for-go/sdk/azcore v1.21.1
