package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The node runs in its own network and mount namespaces. kube-proxy's chains, pods'
// interfaces and the mounts of containerd and kubelet cannot collide with those of the
// machine or of another instance, and the kernel removes them with the last process of the
// namespaces, however it ended.

// holder names the pidfile of the process that keeps the namespaces open.
const holder = "holder"

func (s settings) pidFile(name string) string { return s.own("pids", name) }
func (s settings) logFile(name string) string { return s.own("log", name+".log") }

// ownFolders are folders outside the state folder into which the node's programs write
// regardless of their configuration. A folder below State is mounted over each.
func ownFolders() map[string]string {
	return map[string]string{
		"/var/log":         "varlog",
		"/var/lib/cni":     "cni",
		"/var/lib/kubelet": "varlibkubelet",
		"/opt/cni":         "optcni",
	}
}

// holderScript prepares the mount namespace and then waits forever.
func holderScript(s settings, pause string) string {
	var b strings.Builder
	b.WriteString("set -e\n")
	// Private first: "shared" alone would keep propagating to the machine's mounts.
	b.WriteString("mount --make-rprivate /\nmount --make-rshared /\n")
	b.WriteString("mount -t tmpfs -o mode=755 tmpfs /run\nmkdir -p /run/lock /run/netns\n")
	for _, target := range sortedKeys(ownFolders()) {
		fmt.Fprintf(&b, "mount --bind %s %s\n", quote(s.own(ownFolders()[target])), quote(target))
	}
	b.WriteString("ip link set lo up\n")
	fmt.Fprintf(&b, "exec %s\n", quote(pause))
	return b.String()
}

// quote quotes v as one word of a shell script.
func quote(v string) string { return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'" }

// openSandbox makes the namespaces and connects them to the machine by a veth pair. The
// caller has removed what an earlier run left.
func openSandbox(ctx context.Context, s settings, pause string) error {
	if err := errors.Join(checkFree(s), checkDisk(s.State)); err != nil {
		return err
	}
	made, err := makeOwnFolders(s)
	if err != nil {
		return err
	}
	if err := saveMade(s, made); err != nil {
		return err
	}
	argv := []string{"unshare", "--net", "--mount", "--propagation", "private", "--", "sh", "-c", holderScript(s, pause)}
	if err := spawn(s.pidFile(holder), s.logFile(holder), argv, cleanEnv(os.Environ())); err != nil {
		return err
	}
	err = waitFor(ctx, 10*time.Second, func(ctx context.Context) error { return holderReady(s, pause) })
	if err != nil {
		return fmt.Errorf("the node's namespaces could not be opened: %w; see %s", err, s.logFile(holder))
	}
	if err := connectNode(ctx, s); err != nil {
		return err
	}
	return allowEgress(ctx, s)
}

// holderReady returns nil once the holder has finished its script, which ends by replacing
// the shell with the pause program.
func holderReady(s settings, pause string) error {
	p, ok := readPID(s.pidFile(holder))
	if !ok {
		return hopelessError{errors.New("the process that holds them ended")}
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return err
	}
	if exe != pause {
		return fmt.Errorf("process %d still is %s", p.PID, exe)
	}
	return nil
}

// makeOwnFolders makes both sides of ownFolders and returns the targets that did not exist,
// so that `down` can remove them.
func makeOwnFolders(s settings) ([]string, error) {
	var made []string
	for target, source := range ownFolders() {
		if err := os.MkdirAll(s.own(source), 0o755); err != nil {
			return made, err
		}
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			made = append(made, target)
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return made, err
		}
	}
	return made, nil
}

// checkFree returns an error if an address of the machine is in one of the cluster's
// networks.
func checkFree(s settings) error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		for name, own := range map[string]netip.Prefix{"CLEW_POD_CIDR": s.PodCIDR, "CLEW_SERVICE_CIDR": s.ServiceCIDR, "CLEW_LINK_CIDR": s.linkCIDR()} {
			if own.Overlaps(p.Masked()) {
				return fmt.Errorf("this machine has the address %s, which is in the cluster's network %s; set %s to a free network", a, own, name)
			}
		}
	}
	return nil
}

// roomNeeded is more than tests write. Kubelet keeps one per cent of the disk free: below
// that it refuses pods and evicts those that run.
const roomNeeded = 4 << 30

// checkDisk returns an error for a disk that would soon be full.
func checkDisk(folder string) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(folder, &disk); err != nil {
		return fmt.Errorf("check the disk of %s: %w", folder, err)
	}
	free, least := int64(disk.Bavail)*disk.Bsize, int64(disk.Blocks)*disk.Bsize/100+roomNeeded
	if free < least {
		return fmt.Errorf("the disk of %s has %d MiB left, and the cluster needs %d; make room, for example in the cache of built programs (go clean -cache)", folder, free>>20, least>>20)
	}
	return nil
}

// connectNode connects the machine and the node by a veth pair, and routes pods and services
// over it.
func connectNode(ctx context.Context, s settings) error {
	p, ok := readPID(s.pidFile(holder))
	if !ok {
		return errors.New("the node's namespaces are gone")
	}
	pid, bits := strconv.Itoa(p.PID), "/"+strconv.Itoa(s.linkCIDR().Bits())
	outside := [][]string{
		{"ip", "link", "add", s.link(), "type", "veth", "peer", "name", "eth0", "netns", pid},
		{"ip", "addr", "add", s.hostIP().String() + bits, "dev", s.link()},
		{"ip", "link", "set", s.link(), "up"},
	}
	inside := [][]string{
		{"ip", "addr", "add", s.nodeIP().String() + bits, "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", s.hostIP().String()},
		{"sysctl", "-q", "-w", "net.ipv4.ip_forward=1"},
	}
	for _, argv := range outside {
		if _, err := run(ctx, argv[0], argv[1:]...); err != nil {
			return err
		}
	}
	for _, argv := range inside {
		if _, err := runCmd(sandboxed(ctx, p, argv...)); err != nil {
			return err
		}
	}
	return addRoutes(ctx, s)
}

// allowEgress lets pods reach what this machine can reach.
func allowEgress(ctx context.Context, s settings) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	for _, rule := range egressRules(s) {
		if _, err := run(ctx, "iptables", append([]string{"-w"}, rule...)...); err != nil {
			return err
		}
	}
	return nil
}

// egressRules returns the only packet filter rules outside the node's namespace. Clean-up
// finds them by their comment.
func egressRules(s settings) [][]string {
	comment := []string{"-m", "comment", "--comment", s.name(), "-j"}
	rule := func(target string, match ...string) []string {
		return append(append(match, comment...), target)
	}
	inside := s.link()
	if s.Nodes == 2 {
		inside = "clew" + strconv.Itoa(s.Instance) + "+" // the two nodes see each other's addresses
	}
	return [][]string{
		rule("MASQUERADE", "-t", "nat", "-A", "POSTROUTING", "-s", s.linkCIDR().String(), "!", "-o", inside),
		rule("ACCEPT", "-t", "filter", "-I", "FORWARD", "-i", s.link()),
		rule("ACCEPT", "-t", "filter", "-I", "FORWARD", "-o", s.link()),
	}
}

// enter returns a command line prefix that runs a command in the sandbox that p holds, in
// the process that is started and not in a child.
func enter(p process) []string {
	ns := fmt.Sprintf("/proc/%d/ns/", p.PID)
	return []string{"nsenter", "--net=" + ns + "net", "--mount=" + ns + "mnt", "--"}
}

func sandboxed(ctx context.Context, p process, argv ...string) *exec.Cmd {
	all := append(enter(p), argv...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = cleanEnv(os.Environ())
	return cmd
}

// cleanEnv leaves out proxies, which the cluster's programs must not use among themselves,
// and variables that would point them to another cluster.
func cleanEnv(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch strings.ToUpper(name) {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "KUBECONFIG", "NOTIFY_SOCKET":
		default:
			kept = append(kept, kv)
		}
	}
	return kept
}

// resolvConf returns a resolv.conf with the name servers that the node can reach: not those
// on the machine's loopback.
func resolvConf(read func(string) ([]byte, error)) string {
	for _, file := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		data, err := read(file)
		if err != nil {
			continue
		}
		var lines []string
		for _, line := range strings.Split(string(data), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(fields[1]); err == nil && !a.IsLoopback() && a.Is4() {
				lines = append(lines, "nameserver "+fields[1])
			}
		}
		if len(lines) > 0 {
			return strings.Join(lines, "\n") + "\n"
		}
	}
	return ""
}

// saveMade records the folders outside State that we made.
func saveMade(s settings, made []string) error {
	if len(made) == 0 {
		return nil
	}
	earlier, _ := os.ReadFile(s.path("made-folders"))
	return writeFile(s.path("made-folders"), append(earlier, []byte(strings.Join(made, "\n")+"\n")...), 0o644)
}

// removeMade removes those folders if they are empty.
func removeMade(s settings) {
	data, _ := os.ReadFile(s.path("made-folders"))
	for _, dir := range strings.Fields(string(data)) {
		if _, own := ownFolders()[dir]; own && filepath.IsAbs(dir) {
			os.Remove(dir)
		}
	}
}
