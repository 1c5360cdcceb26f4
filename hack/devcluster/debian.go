package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// packages are the Debian packages that the cluster stands on.
func packages() []string {
	return []string{
		"buildah", "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "debootstrap", "debian-archive-keyring",
		"ethtool", "git", "iproute2", "iptables", "mount", "postgresql", "procps", "runc", "socat", "tar", "util-linux",
	}
}

// ensurePackages installs the packages that are missing, and starts none of
// the services that come with them.
func ensurePackages(ctx context.Context, p *progress) error {
	missing, err := missingPackages(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	return p.step("installing Debian packages: "+strings.Join(missing, " "), func() error {
		return install(ctx, missing)
	})
}

func missingPackages(ctx context.Context) ([]string, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, fmt.Errorf("dpkg-query is not there: the development cluster runs on Debian 12 or a relative; on other systems use CLUSTER=current")
	}
	// The exit status says that some package is unknown; the output says which are there.
	out, _ := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${Package} ${Status}\n"}, packages()...)...).Output()
	return notInstalled(string(out), packages()), nil
}

func notInstalled(dpkg string, wanted []string) []string {
	there := map[string]bool{}
	for _, line := range strings.Split(dpkg, "\n") {
		if name, ok := strings.CutSuffix(line, " install ok installed"); ok {
			there[name] = true
		}
	}
	var missing []string
	for _, name := range wanted {
		if !there[name] {
			missing = append(missing, name)
		}
	}
	return missing
}

// policyFile, while it is there and ends with status 101, keeps packages from
// starting their services.
const policyFile = "/usr/sbin/policy-rc.d"

func install(ctx context.Context, names []string) error {
	if _, err := os.Stat(policyFile); os.IsNotExist(err) {
		if err := os.WriteFile(policyFile, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer os.Remove(policyFile)
	}
	// Where Docker's own packages are, apt would rather replace them than fail.
	args := append([]string{"install", "-y", "-qq", "--no-install-recommends", "--no-remove"}, names...)
	if err := apt(ctx, args...); err == nil {
		return nil
	}
	// The lists may be missing or old.
	if err := apt(ctx, "update", "-qq"); err != nil {
		return err
	}
	return apt(ctx, args...)
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	_, err := runCmd(cmd)
	return err
}

// repository is one archive of Debian packages that apt on this machine uses.
type repository struct{ URI, Codename, Component string }

// repositories asks apt where the packages of a release come from, so that the
// base image is made from the same mirror. The main archive comes first.
func repositories(ctx context.Context, release string) ([]repository, error) {
	out, err := run(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	repos := parseRepositories(out, release)
	if len(repos) == 0 || repos[0].Codename != release {
		return nil, fmt.Errorf("apt knows no archive of Debian %s; add one to /etc/apt/sources.list.d", release)
	}
	return repos, nil
}

// parseRepositories reads lines of URI, code name and component, and keeps
// those of the release's main component once each.
func parseRepositories(out, release string) []repository {
	var repos []repository
	seen := map[repository]bool{}
	for _, line := range strings.Split(out, "\n") {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || (f[1] != release && !strings.HasPrefix(f[1], release+"-")) {
			continue
		}
		r := repository{strings.TrimSuffix(f[0], "/"), f[1], f[2]}
		if seen[r] {
			continue
		}
		seen[r] = true
		if r.Codename == release {
			repos = append([]repository{r}, repos...)
		} else {
			repos = append(repos, r)
		}
	}
	return repos
}
