// Stands in for the core of the Azure clients, which only BuildKit's caches in Azure and in GitHub Actions need: the
// development cluster caches nothing in either.
module github.com/Azure/azure-sdk-for-go/sdk/azcore

go 1.26.0
