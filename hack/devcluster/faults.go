package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// kill sends SIGKILL to programs of the cluster. Containers outlive containerd and kubelet,
// and up starts the programs again.
func (c *cluster) kill(names []string) error {
	known := componentNames(c.settings)
	if len(names) == 0 {
		return fmt.Errorf("kill needs the name of at least one of %s", strings.Join(known, ", "))
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no program %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	for _, name := range names {
		p, ok := readPID(c.pidFile(name))
		if !ok {
			return fmt.Errorf("%s does not run", name)
		}
		if err := p.end(10*time.Second, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
	}
	return nil
}

// saveEtcd copies etcd's data to a new folder while the cluster keeps running. etcd is
// stopped while it copies, so the copy is what a crash at that moment would leave.
func (c *cluster) saveEtcd(ctx context.Context, folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return fmt.Errorf("%s exists already; name a new folder", folder)
	}
	p, ok := readPID(c.pidFile("etcd"))
	if !ok {
		return errors.New("etcd does not run; run up first")
	}
	if err := syscall.Kill(p.PID, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop etcd: %w", err)
	}
	_, err := runCmd(exec.CommandContext(ctx, "cp", "-a", c.path("etcd"), folder))
	return errors.Join(err, syscall.Kill(p.PID, syscall.SIGCONT))
}

// restoreEtcd restores etcd's data from a copy of saveEtcd, and restarts the cluster's
// programs except containerd, as one restores a backup.
func (c *cluster) restoreEtcd(ctx context.Context, folder string) error {
	if _, err := os.Stat(filepath.Join(folder, "member")); err != nil {
		return fmt.Errorf("%s has no copy of etcd's data: %w", folder, err)
	}
	var running []string
	for _, name := range componentNames(c.settings) {
		if _, ok := readPID(c.pidFile(name)); ok && name != "containerd" {
			running = append(running, name)
		}
	}
	// Clients of the API are stopped first, so that none sees two states of it.
	slices.Reverse(running)
	if err := c.kill(running); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("etcd")); err != nil {
		return err
	}
	if _, err := runCmd(exec.CommandContext(ctx, "cp", "-a", folder, c.path("etcd"))); err != nil {
		return err
	}
	return c.up(ctx)
}
