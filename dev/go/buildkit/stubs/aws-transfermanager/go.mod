// Stands in for the uploads of the S3 client, which only BuildKit's cache in S3 needs: the development cluster caches
// nothing there.
module github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager

go 1.26.0

require github.com/aws/aws-sdk-go-v2 v1.43.8
