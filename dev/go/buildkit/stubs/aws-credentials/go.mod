// Stands in for the credentials of the AWS client, which only BuildKit's cache in S3 needs: the development cluster
// caches nothing there.
module github.com/aws/aws-sdk-go-v2/credentials

go 1.26.0
