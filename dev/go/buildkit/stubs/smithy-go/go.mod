// Stands in for what the AWS clients are generated on, which only BuildKit's cache in S3 needs: the development cluster
// caches nothing there.
module github.com/aws/smithy-go

go 1.26.0
