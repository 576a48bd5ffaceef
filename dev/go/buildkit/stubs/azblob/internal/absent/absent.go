// Package absent has the error of all of these packages: a client of Azure's blobs is not built.
package absent

import "errors"

// Err is what every call returns.
var Err = errors.New("left out of this build: the development cluster caches nothing in Azure")
