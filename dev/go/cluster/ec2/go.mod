// Stands in for the EC2 client: kube-router's router, which the development cluster doesn't run, calls one operation of
// it, and the generated client of all of them takes the compiler longer than the rest of kube-router.
module github.com/aws/aws-sdk-go-v2/service/ec2

go 1.26.0

require github.com/aws/aws-sdk-go-v2 v1.41.0

require github.com/aws/smithy-go v1.24.0 // indirect
