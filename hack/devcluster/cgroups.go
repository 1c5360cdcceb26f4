package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// hierarchy is a mounted tree of control groups.
type hierarchy struct {
	dir string
	v2  bool
}

// hierarchies lists the hierarchies in /proc/self/mountinfo.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseHierarchies(string(data)), nil
}

func parseHierarchies(mountinfo string) []hierarchy {
	var all []hierarchy
	for _, line := range strings.Split(mountinfo, "\n") {
		before, after, ok := strings.Cut(line, " - ")
		fields, fsType := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(fsType) < 1 {
			continue
		}
		switch fsType[0] {
		case "cgroup":
			all = append(all, hierarchy{dir: fields[4]})
		case "cgroup2":
			all = append(all, hierarchy{dir: fields[4], v2: true})
		}
	}
	return all
}

// makeCgroups makes the parent group of all pods' groups. Kubelet requires it in every
// hierarchy.
func makeCgroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.v2 && len(all) == 1 {
			if err := delegate(h.dir); err != nil {
				return err
			}
		}
		dir := filepath.Join(h.dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("control group %s: %w", dir, err)
		}
		if h.v2 && len(all) == 1 {
			if err := delegate(dir); err != nil {
				return err
			}
		}
		if err := weigh(dir); err != nil {
			return err
		}
		// In version 1 a new group may use no processor until its cpuset is set.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			data, err := os.ReadFile(filepath.Join(h.dir, file))
			if h.v2 || err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeProgramsCgroup makes the group of the cluster's own programs. It has the same weight
// as the group of all pods: on a real cluster pods cannot take processors from the API
// server, which runs elsewhere, nor from kubelet, for which a part is reserved.
func makeProgramsCgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if !sharesProcessors(h.dir) && !(h.v2 && len(all) == 1) {
			continue
		}
		dir := filepath.Join(h.dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("control group %s: %w", dir, err)
		}
		if err := weigh(dir); err != nil {
			return err
		}
	}
	return nil
}

// sharesProcessors reports whether a hierarchy of version 1 has the cpu controller.
func sharesProcessors(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cpu.shares"))
	return err == nil
}

// join moves a process into a group.
func join(name string, pid int) error {
	for _, dir := range cgroupDirs(name) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0o644); err != nil {
			return fmt.Errorf("control group %s: %w", dir, err)
		}
	}
	return nil
}

// weight weighs the pods' group, and the cluster programs' group, as this many ordinary
// processes: one for each processor, as in kubelet's shares of
// cgroups version 1. With less, a compiler that runs beside the cluster takes as much as the
// whole node. With more, the kernel's own threads, which write disks and receive packets and
// count as one each, wait behind the pods: at 16, an fsync on a volume took four times as
// long beside busy pods (62 ms instead of 15 at the 95th percentile).
func weight() int { return min(runtime.NumCPU(), mostWeight) }

// mostWeight keeps cpu.weight within the kernel's limit of 10,000.
const mostWeight = 100

// weigh sets the group's share of the processors.
func weigh(dir string) error {
	for file, one := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
		path := filepath.Join(dir, file)
		if _, err := os.Stat(path); err != nil {
			continue // a file of another hierarchy or version
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "%d", weight()*one), 0o644); err != nil {
			return fmt.Errorf("control group %s: %w", dir, err)
		}
	}
	return nil
}

// delegate enables all controllers of a version 2 group for its children.
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(data)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("control group %s, controller %s: %w", dir, c, err)
		}
	}
	return nil
}

// cgroupDirs returns the folders of the named groups that exist.
func cgroupDirs(names ...string) []string {
	all, err := hierarchies()
	if err != nil {
		return nil
	}
	var dirs []string
	for _, h := range all {
		for _, name := range names {
			dir := filepath.Join(h.dir, name)
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// cgroupPIDs returns the processes in the named groups and below them.
func cgroupPIDs(names ...string) []int {
	var pids []int
	for _, dir := range cgroupDirs(names...) {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil
			}
			data, _ := os.ReadFile(path)
			for _, f := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	return pids
}

// removeCgroups removes the named groups and all groups below them. It retries, since a
// group whose last process has just ended stays busy for a moment.
func removeCgroups(names ...string) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var errs []error
		for _, dir := range cgroupDirs(names...) {
			errs = append(errs, removeTree(dir))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// removeTree removes folders from the innermost outwards. The files of a control group
// cannot be removed, and do not have to be.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
