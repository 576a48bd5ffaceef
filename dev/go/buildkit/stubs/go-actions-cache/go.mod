// Stands in for the client of GitHub Actions' cache: it writes through the client of Azure's blobs, and the development
// cluster caches nothing there.
module github.com/tonistiigi/go-actions-cache

go 1.26.0
