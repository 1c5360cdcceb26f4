package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// With NODES=2 a cluster has a second node: namespaces of its own, in which containerd, kube-proxy and
// kubelet run, half of the network of pods, and a link of its own to this machine, which routes between
// the two. Its files are in the folder 2 of the state folder. It takes only pods that tolerate its
// taint, so that everything else runs on the first node, which tests can lose the second one without.

// secondTaint keeps pods that do not tolerate it off the second node.
const secondTaint = "clew-devcluster/second"

// second returns the settings for the second node. Whatever belongs to the cluster is the same.
func (s settings) second() settings {
	s.isSecond = true
	return s
}

// nodes returns the settings for each node of the cluster.
func (s settings) nodes() []settings {
	if s.Nodes == 2 {
		return []settings{s, s.second()}
	}
	return []settings{s}
}

// both returns the settings for the nodes that an instance may have had, for what clears up.
func (s settings) both() []settings { return []settings{s, s.second()} }

// nodeName is the name of the node, and of its pods' control group.
func (s settings) nodeName() string {
	if s.isSecond {
		return s.name() + "-2"
	}
	return s.name()
}

// own returns a path in the folder of the node.
func (s settings) own(elem ...string) string {
	if s.isSecond {
		elem = append([]string{"2"}, elem...)
	}
	return s.path(elem...)
}

// credential is the name of the files with a certificate or kubeconfig that each node has for itself.
func (s settings) credential(name string) string {
	if s.isSecond {
		return name + "-2"
	}
	return name
}

// linkCIDR is the network between this machine and the node: that of the second follows that of the
// first.
func (s settings) linkCIDR() netip.Prefix {
	if s.isSecond {
		return netip.PrefixFrom(nth(s.LinkCIDR, 4), s.LinkCIDR.Bits())
	}
	return s.LinkCIDR
}

// podCIDR is the network of the node's pods: all of the cluster's, or one half.
func (s settings) podCIDR() netip.Prefix {
	if s.Nodes != 2 {
		return s.PodCIDR
	}
	bits := s.PodCIDR.Bits() + 1
	half := netip.PrefixFrom(s.PodCIDR.Addr(), bits)
	if s.isSecond {
		half = netip.PrefixFrom(nth(half, 1<<(32-bits)), bits)
	}
	return half
}

// routes are the networks that are behind the node, seen from this machine. The more specific one
// counts: the second node has one half of what the first one has.
func (s settings) routes() []netip.Prefix {
	if s.isSecond {
		return []netip.Prefix{s.podCIDR()}
	}
	return []netip.Prefix{s.PodCIDR, s.ServiceCIDR}
}

// at returns the cluster, as seen from one of its nodes.
func (c *cluster) at(node settings) *cluster { return &cluster{settings: node, progress: c.progress} }

// on says on which node something happens, if there are two.
func (s settings) on() string {
	if s.isSecond {
		return " on " + s.nodeName()
	}
	return ""
}

// anyNodeDead returns an error that ends waitFor if a program of a node has ended.
func (c *cluster) anyNodeDead() error {
	for _, n := range c.nodes() {
		if err := c.at(n).anyDead(); err != nil {
			return err
		}
	}
	return nil
}

// secondNamed returns the second node if that is its name.
func (c *cluster) secondNamed(name string) (*cluster, error) {
	if c.Nodes != 2 {
		return nil, fmt.Errorf("the cluster in %s has one node; bring it up with NODES=2", c.State)
	}
	if second := c.second(); name == second.nodeName() {
		return c.at(second), nil
	}
	return nil, fmt.Errorf("there is no node %q that can be cut off; there is %s", name, c.second().nodeName())
}

// cutNode stops the kubelet of the second node, and cuts its network. Its pods run on, unseen.
func (c *cluster) cutNode(ctx context.Context, name string) error {
	node, err := c.secondNamed(name)
	if err != nil {
		return err
	}
	if _, err := run(ctx, "ip", "link", "set", node.link(), "down"); err != nil {
		return err
	}
	if p, ok := readPID(node.pidFile("kubelet")); ok {
		return p.end(10*time.Second, syscall.SIGKILL)
	}
	return nil
}

// healNode connects the second node, starts its kubelet, and waits until it is ready.
func (c *cluster) healNode(ctx context.Context, name string) error {
	node, err := c.secondNamed(name)
	if err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	bins, err := ensureBinaries(ctx, c.settings, c.progress)
	if err != nil {
		return err
	}
	var kubeletStart time.Time // zero if it runs: then its last report is good
	if _, ok := readPID(node.pidFile("kubelet")); !ok {
		kubeletStart = time.Now()
	}
	if err := node.reconnect(ctx); err != nil {
		return err
	}
	for _, comp := range components(node.settings, bins) {
		if err := node.startOne(ctx, comp); err != nil {
			return err
		}
	}
	return node.progress.step("waiting for the node", func() error {
		return waitFor(ctx, time.Minute, func(ctx context.Context) error { return node.nodeReady(ctx, kubeletStart) })
	})
}

// reconnect sets this machine's end of the link to the node up, with the routes that it lost when it
// was set down.
func (c *cluster) reconnect(ctx context.Context) error {
	if flags, err := os.ReadFile("/sys/class/net/" + c.link() + "/operstate"); err == nil && strings.TrimSpace(string(flags)) == "up" {
		return nil
	}
	if _, err := run(ctx, "ip", "link", "set", c.link(), "up"); err != nil {
		return err
	}
	return addRoutes(ctx, c.settings)
}

// addRoutes routes to the node what is behind it.
func addRoutes(ctx context.Context, s settings) error {
	for _, network := range s.routes() {
		if _, err := run(ctx, "ip", "route", "replace", network.String(), "via", s.nodeIP().String()); err != nil {
			return err
		}
	}
	return nil
}
