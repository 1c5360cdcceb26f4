package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// twoNodes returns settings of a cluster with two nodes.
func twoNodes(t *testing.T) settings {
	t.Helper()
	s := testSettings(t)
	s.Nodes = 2
	return s
}

// asked returns the settings for what NODES is set to, with the same state folder.
func (s settings) asked(nodes string) (settings, error) {
	s.Nodes = 0
	return s, s.setNodes(env("NODES", nodes))
}

func TestTheSecondNodeSharesNothingThatEachNodeHasForItself(t *testing.T) {
	s, err := settingsFrom(env("NODES", "2", "CLEW_INSTANCE", "3"))
	if err != nil {
		t.Fatal(err)
	}
	first, second := s.nodes()[0], s.nodes()[1]
	for what, pair := range map[string][2]string{
		"name":               {first.nodeName(), second.nodeName()},
		"folder":             {first.own("kubelet"), second.own("kubelet")},
		"socket":             {first.containerdSocket(), second.containerdSocket()},
		"interface":          {first.link(), second.link()},
		"address":            {first.nodeIP().String(), second.nodeIP().String()},
		"machine's address":  {first.hostIP().String(), second.hostIP().String()},
		"client certificate": {first.credential("kubelet"), second.credential("kubelet")},
	} {
		if pair[0] == pair[1] {
			t.Errorf("both nodes have the %s %s", what, pair[0])
		}
	}
	if first.podCIDR().Overlaps(second.podCIDR()) || first.linkCIDR().Overlaps(second.linkCIDR()) {
		t.Errorf("networks overlap: %s and %s, %s and %s", first.podCIDR(), second.podCIDR(), first.linkCIDR(), second.linkCIDR())
	}
	if got := second.podCIDR().String(); got != "10.213.56.0/21" || !s.PodCIDR.Overlaps(second.podCIDR()) {
		t.Errorf("the pods of the second node are in %s, and those of the cluster in %s", got, s.PodCIDR)
	}
	if first.apiURL() != second.apiURL() || second.nodeName() != "clew-devcluster-3-2" {
		t.Errorf("the second node is %s, with the API server at %s", second.nodeName(), second.apiURL())
	}
}

func TestAClusterWithOneNodeIsWhatItWas(t *testing.T) {
	s := testSettings(t)
	if n := s.nodes(); len(n) != 1 || n[0].podCIDR() != s.PodCIDR || n[0].own("kubelet") != s.path("kubelet") {
		t.Errorf("the nodes are %+v", n)
	}
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(s.path("settings.json")); err != nil || strings.Contains(string(data), "nodes") {
		t.Errorf("its settings are %s (%v)", data, err)
	}
	if kubeletConfig(s, "") != kubeletConfig(s.nodes()[0], "") || strings.Contains(kubeletConfig(s, ""), "Taints") {
		t.Error("the node has a taint")
	}
}

func TestAClusterKeepsItsNumberOfNodes(t *testing.T) {
	s := twoNodes(t)
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	again, err := s.asked("")
	if err != nil || again.Nodes != 2 {
		t.Errorf("without NODES it has %d (%v)", again.Nodes, err)
	}
	one, err := s.asked("1")
	if err != nil {
		t.Fatal(err)
	}
	if diffs, err := one.conflicts(); err != nil || len(diffs) != 1 || !strings.Contains(diffs[0], "nodes was 2") {
		t.Errorf("with NODES=1: %q, %v", diffs, err)
	}
	for _, wrong := range []string{"0", "3", "two"} {
		if _, err := settingsFrom(env("NODES", wrong)); err == nil || !strings.Contains(err.Error(), "it must be 1 or 2") {
			t.Errorf("NODES=%s: %v", wrong, err)
		}
	}
}

func TestBothNodesHaveTheirFiles(t *testing.T) {
	s := twoNodes(t)
	if err := writeConfigs(s); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.nodes() {
		for _, file := range []string{n.own("kubelet.yaml"), n.own("kube-proxy.yaml"), n.own("containerd.toml"), n.own("cni-conf", "10-clew.conflist"), s.path(n.credential("kubelet") + ".kubeconfig")} {
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(s.State, "2", "kubelet.yaml"))
	if err != nil || !strings.Contains(string(data), "registerWithTaints: [{key: clew-devcluster/second, effect: NoSchedule}]") {
		t.Errorf("the second kubelet's configuration is (%v)\n%s", err, data)
	}
}

func TestOnlyTheSecondNodeCanBeCutOff(t *testing.T) {
	s := twoNodes(t)
	c := &cluster{settings: s, progress: newProgress(os.Stderr)}
	if node, err := c.secondNamed("clew-devcluster-0-2"); err != nil || !node.isSecond {
		t.Errorf("the second node: %v", err)
	}
	if _, err := c.secondNamed("clew-devcluster-0"); err == nil || !strings.Contains(err.Error(), "there is clew-devcluster-0-2") {
		t.Errorf("the first node: %v", err)
	}
	c.Nodes = 0
	if _, err := c.secondNamed("clew-devcluster-0-2"); err == nil || !strings.Contains(err.Error(), "NODES=2") {
		t.Errorf("of one node: %v", err)
	}
}
