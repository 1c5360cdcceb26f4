package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseRules(t *testing.T) {
	out := `-P FORWARD ACCEPT
-N DOCKER
-A FORWARD -o clew1 -m comment --comment clew-devcluster-1 -j ACCEPT
-A FORWARD -i clew11 -m comment --comment clew-devcluster-11 -j ACCEPT
-A FORWARD -i clew1 -m comment --comment "clew-devcluster-1" -j ACCEPT
-A FORWARD -m comment --comment "not clew-devcluster-1 at all" -j DROP
`
	want := [][]string{
		strings.Fields("-t filter -D FORWARD -o clew1 -m comment --comment clew-devcluster-1 -j ACCEPT"),
		strings.Fields("-t filter -D FORWARD -i clew1 -m comment --comment clew-devcluster-1 -j ACCEPT"),
	}
	if got := parseRules("filter", out, "clew-devcluster-1"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestEgressRulesAreFound checks that clean-up finds every rule that we add.
func TestEgressRulesAreFound(t *testing.T) {
	s := testSettings(t)
	for _, rule := range egressRules(s) {
		listed := "-A " + strings.Join(rule[3:], " ")
		got := parseRules(rule[1], listed, s.name())
		if len(got) != 1 || got[0][1] != rule[1] {
			t.Errorf("rule %q is not found: %q", listed, got)
		}
	}
}

func TestParseMounts(t *testing.T) {
	mountinfo := `27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 0:40 / /state rw shared:1 - tmpfs tmpfs rw
41 40 0:41 / /state/a rw - tmpfs tmpfs rw
42 27 0:42 / /state-1/a rw - tmpfs tmpfs rw
43 41 0:43 / /state/a/b rw - tmpfs tmpfs rw
`
	want := []string{"/state/a/b", "/state/a", "/state"}
	if got := parseMounts(mountinfo, "/state"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseHierarchies(t *testing.T) {
	mountinfo := `27 1 254:0 / / rw - ext4 /dev/vda rw
30 27 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:31 / /sys/fs/cgroup/pids rw,relatime shared:2 - cgroup cgroup rw,pids
32 30 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	want := []hierarchy{{dir: "/sys/fs/cgroup/pids"}, {dir: "/sys/fs/cgroup/unified", v2: true}}
	if got := parseHierarchies(mountinfo); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestIsOurs(t *testing.T) {
	const state = "/var/lib/clew-devcluster"
	words := func(w ...string) string { return strings.Join(w, "\x00") + "\x00" }
	for name, c := range map[string]struct {
		exe, cmdline string
		want         bool
	}{
		"shim":                   {"/usr/bin/containerd-shim-runc-v2", words("shim", "-address", state+"/containerd/containerd.sock"), true},
		"flag with equals":       {"/c/etcd", words("etcd", "--data-dir="+state+"/etcd"), true},
		"program was replaced":   {"/c/kubelet (deleted)", words("kubelet", "--config="+state+"/kubelet.yaml"), true},
		"other instance":         {"/c/etcd", words("etcd", "--data-dir="+state+"-1/etcd"), false},
		"somebody reads our log": {"/usr/bin/tail", words("tail", "-f", state+"/log/etcd.log"), false},
		"somebody's kubectl":     {"/usr/bin/kubectl", words("kubectl", "--kubeconfig", state+"/admin.kubeconfig"), false},
		"somebody's containerd":  {"/usr/bin/containerd", words("containerd"), false},
	} {
		if got := isOurs(state, c.exe, c.cmdline); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestParseStat(t *testing.T) {
	stat := "77 (a (b) c) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200 18446744073709551615"
	start, state, err := parseStat(stat)
	if err != nil {
		t.Fatal(err)
	}
	if start != 4242 || state != "S" {
		t.Errorf("start time %d and state %q, want 4242 and S", start, state)
	}
	if _, _, err := parseStat("77 (x) S 1"); err == nil {
		t.Error("a short line is accepted")
	}
}

func TestProcessLife(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pids", "sleep")
	if err := spawn(pidFile, filepath.Join(dir, "log", "sleep"), []string{"sleep", "60"}, os.Environ()); err != nil {
		t.Fatal(err)
	}
	p, ok := readPID(pidFile)
	if !ok {
		t.Fatal("the process does not run")
	}
	other := p
	other.Start++
	if other.alive() {
		t.Error("a process with another start time is taken for the same")
	}
	if err := p.stop(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if _, ok := readPID(pidFile); ok {
		t.Error("the process runs after it was stopped")
	}
}

func testSettings(t *testing.T) settings {
	t.Helper()
	s, err := settingsFrom(env())
	if err != nil {
		t.Fatal(err)
	}
	s.State = t.TempDir()
	return s
}
