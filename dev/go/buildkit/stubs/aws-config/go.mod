// Stands in for the configuration of the AWS client: it signs in to half a dozen services, and BuildKit asks it only
// for a cache in S3, where the development cluster caches nothing.
module github.com/aws/aws-sdk-go-v2/config

go 1.26.0

require github.com/aws/aws-sdk-go-v2 v1.43.8
