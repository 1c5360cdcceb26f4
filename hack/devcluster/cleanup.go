package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// programNames returns the names of programs that the cluster runs outside pods. Together
// with the state folder in the command line they identify our processes.
func programNames() map[string]bool {
	names := map[string]bool{}
	for _, n := range []string{
		"pause", "etcd", "containerd", "containerd-shim-runc-v2", "containerd-shim", "runc", "coredns", "local-path-provisioner",
		"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet",
	} {
		names[n] = true
	}
	return names
}

// strays returns the processes of this instance, including those without a pidfile: pods'
// processes by their control group, shims and others by their command line or by the node's
// network namespace.
func strays(s settings) []int {
	found := map[int]bool{}
	for _, pid := range cgroupPIDs(s.groups()...) {
		found[pid] = true
	}
	netns := map[string]bool{}
	for _, n := range s.both() {
		netns[nodeNamespace(n)] = true
	}
	delete(netns, "")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && netns[ns] {
			found[pid] = true
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if isOurs(s.State, exe, string(cmdline)) {
			found[pid] = true
		}
	}
	pids := make([]int, 0, len(found))
	for pid := range found {
		pids = append(pids, pid)
	}
	return pids
}

// nodeNamespace returns the name of the node's network namespace, as seen in any of its
// programs; it is empty if none runs.
func nodeNamespace(s settings) string {
	own, _ := os.Readlink("/proc/self/ns/net")
	files, _ := filepath.Glob(s.pidFile("*"))
	for _, f := range files {
		p, ok := readPID(f)
		if !ok {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID)); err == nil && ns != own {
			return ns
		}
	}
	return ""
}

// isOurs reports whether a process belongs to the instance, by its program and its command
// line, whose words end with a zero byte.
func isOurs(state, exe, cmdline string) bool {
	if !programNames()[strings.TrimSuffix(filepath.Base(exe), " (deleted)")] {
		return false
	}
	for _, word := range strings.Split(cmdline, "\x00") {
		if i := strings.Index(word, state); i >= 0 {
			rest := word[i+len(state):]
			if rest == "" || rest[0] == '/' {
				return true
			}
		}
	}
	return false
}

// stopAll ends every process of the instance and waits until all are gone. With keepData,
// etcd gets time to close its files.
func stopAll(s settings, keepData bool) error {
	var files []string
	for _, n := range s.both() {
		found, _ := filepath.Glob(n.pidFile("*"))
		files = append(files, found...)
	}
	if p, ok := readPID(s.pidFile("etcd")); ok && keepData {
		if err := p.stop(5 * time.Second); err != nil {
			return err
		}
	}
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := strays(s)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v do not end", left)
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for _, f := range files {
		os.Remove(f)
	}
	return nil
}

// clear removes everything that an instance has outside its state folder, and what is
// useless in that folder without its processes.
func clear(ctx context.Context, s settings, keepData bool) error {
	if err := stopAll(s, keepData); err != nil {
		return err
	}
	for _, mount := range mountsBelow(s) {
		// Deepest first. Only an old version, without namespaces for the node, or manual
		// debugging can have left these.
		syscall.Unmount(mount, syscall.MNT_DETACH)
	}
	if err := removeCgroups(s.groups()...); err != nil {
		return err
	}
	for _, link := range s.links() {
		// It may vanish with the namespace at this moment.
		run(ctx, "ip", "link", "delete", link)
	}
	for _, rule := range leftRules(ctx, s) {
		if _, err := run(ctx, "iptables", append([]string{"-w"}, rule...)...); err != nil {
			return err
		}
	}
	for _, n := range s.both() {
		for _, dir := range []string{n.own("containerd", "state"), n.own("ipam"), n.own("cni"), n.containerdSocket(), n.containerdSocket() + ".ttrpc"} {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// groups names the control groups that an instance may have.
func (s settings) groups() []string {
	return []string{s.nodeName(), s.second().nodeName(), s.programs()}
}

// links returns the machine's ends of links to nodes of the instance.
func (s settings) links() (links []string) {
	for _, n := range s.both() {
		if _, err := os.Stat("/sys/class/net/" + n.link()); err == nil {
			links = append(links, n.link())
		}
	}
	return links
}

// leftRules returns the iptables arguments that delete our rules on this machine.
func leftRules(ctx context.Context, s settings) [][]string {
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil
	}
	var rules [][]string
	for _, table := range []string{"nat", "filter"} {
		out, err := run(ctx, "iptables", "-w", "-t", table, "-S")
		if err == nil {
			rules = append(rules, parseRules(table, out, s.name())...)
		}
	}
	return rules
}

// parseRules parses the output of "iptables -S" and returns, for each rule with the comment,
// the arguments that delete it.
func parseRules(table, out, comment string) [][]string {
	var rules [][]string
	for _, line := range strings.Split(out, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "-A" {
			continue
		}
		for i, w := range words {
			if i > 0 && words[i-1] == "--comment" && strings.Trim(w, `"`) == comment {
				words[i] = comment
				rules = append(rules, append([]string{"-t", table, "-D"}, words[1:]...))
				break
			}
		}
	}
	return rules
}

// mountsBelow returns the machine's mounts in the state folder, deepest first.
func mountsBelow(s settings) []string {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	return parseMounts(string(data), s.State)
}

func parseMounts(mountinfo, dir string) []string {
	var mounts []string
	for _, line := range strings.Split(mountinfo, "\n") {
		f := strings.Fields(line)
		if len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			mounts = append([]string{f[4]}, mounts...)
		}
	}
	return mounts
}

// leftovers describes everything of the instance that still exists.
func leftovers(ctx context.Context, s settings) []string {
	var left []string
	for _, pid := range strays(s) {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(strings.Trim(string(cmdline), "\x00"), "\x00", " ")))
	}
	for _, m := range mountsBelow(s) {
		left = append(left, "mount "+m)
	}
	for _, dir := range cgroupDirs(s.groups()...) {
		left = append(left, "control group "+dir)
	}
	for _, link := range s.links() {
		left = append(left, "interface "+link)
	}
	for _, r := range leftRules(ctx, s) {
		left = append(left, "iptables rule "+strings.Join(r, " "))
	}
	if _, err := os.Lstat(s.State); err == nil {
		left = append(left, "folder "+s.State)
	}
	return left
}

// kernelSettings lists the kernel settings that the cluster changes for the whole machine.
func kernelSettings() []string {
	return []string{"net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}
}

// rememberKernel saves the values of those settings, once, for restoreKernel.
func rememberKernel(s settings) error {
	file := s.path("kernel-settings.json")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	values := map[string]string{}
	for _, name := range kernelSettings() {
		if data, err := os.ReadFile("/proc/sys/" + name); err == nil {
			values[name] = strings.TrimSpace(string(data))
		}
	}
	data, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(file, data, 0o644)
}

// restoreKernel restores the settings, unless another instance still needs them.
func restoreKernel(s settings) {
	data, err := os.ReadFile(s.path("kernel-settings.json"))
	var values map[string]string
	if err != nil || json.Unmarshal(data, &values) != nil {
		return
	}
	for n := range maxInstance + 1 {
		other := s
		other.Instance = n
		if _, err := os.Stat("/sys/class/net/" + other.link()); err == nil && n != s.Instance {
			return
		}
	}
	for _, name := range kernelSettings() {
		if v, ok := values[name]; ok {
			os.WriteFile("/proc/sys/"+name, []byte(v), 0o644)
		}
	}
}
