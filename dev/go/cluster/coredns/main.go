// CoreDNS with only the plugins that the development cluster's Corefile names. The stock binary
// links some fifty, cloud SDKs among them, and takes several times as long to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	// The order in which a query passes the plugins, as in CoreDNS' own plugin.cfg.
	dnsserver.Directives = []string{
		"health", "ready", "errors", "cache", "loadbalance", "kubernetes", "forward",
	}
}

func main() { coremain.Run() }
