// Stands in for the sign-in of the Azure clients, which only BuildKit's cache in Azure needs: the development cluster
// caches nothing there.
module github.com/Azure/azure-sdk-for-go/sdk/azidentity

go 1.26.0
