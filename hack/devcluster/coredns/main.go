// Command coredns is CoreDNS with only the plugins a development cluster's
// DNS needs, so that it builds fast and links no cloud provider's client.
package main

import (
	_ "github.com/coredns/caddy/onevent"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// Only the plugins imported above exist in this binary; the list names
	// them in the order in which CoreDNS puts them around a query.
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "cache", "kubernetes", "forward"}
	coremain.Run()
}
