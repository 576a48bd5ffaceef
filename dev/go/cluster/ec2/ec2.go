// Package ec2 has what kube-router names of the EC2 client, and none of it does anything.
package ec2

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Client is no client.
type Client struct{}

// Options are not looked at.
type Options struct{}

// ModifyInstanceAttributeInput names an instance.
type ModifyInstanceAttributeInput struct {
	InstanceId      *string
	SourceDestCheck *types.AttributeBooleanValue
}

// ModifyInstanceAttributeOutput is empty.
type ModifyInstanceAttributeOutput struct{}

// NewFromConfig returns a client whose every call fails.
func NewFromConfig(aws.Config, ...func(*Options)) *Client { return &Client{} }

// ModifyInstanceAttribute fails.
func (*Client) ModifyInstanceAttribute(
	context.Context, *ModifyInstanceAttributeInput, ...func(*Options),
) (*ModifyInstanceAttributeOutput, error) {
	return nil, errors.New("this kube-router was built without the EC2 client")
}
