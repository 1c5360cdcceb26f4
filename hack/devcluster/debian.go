package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// packages returns the Debian packages that the cluster needs.
func packages() []string {
	return []string{
		"buildah", "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "debootstrap", "debian-archive-keyring",
		"ethtool", "git", "iproute2", "iptables", "mount", "postgresql", "procps", "runc", "socat", "tar", "util-linux",
	}
}

// ensurePackages installs missing packages, without starting their services.
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
		return nil, fmt.Errorf("dpkg-query is missing: the development cluster runs on Debian 12 and its derivatives; on other systems use CLUSTER=current")
	}
	// The exit status only says that some package is unknown; the output lists those installed.
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

// policyFile keeps packages from starting their services while it exists and exits with 101.
const policyFile = "/usr/sbin/policy-rc.d"

func install(ctx context.Context, names []string) error {
	if _, err := os.Stat(policyFile); os.IsNotExist(err) {
		if err := os.WriteFile(policyFile, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer os.Remove(policyFile)
	}
	// Without --no-remove, apt would replace Docker's own packages instead of failing.
	args := append([]string{"install", "-y", "-qq", "--no-install-recommends", "--no-remove"}, names...)
	if err := apt(ctx, args...); err == nil {
		return nil
	}
	// The package lists may be missing or old.
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

// repositories returns the archives from which apt on this machine gets the packages of a
// release, so that the base image uses the same mirror. The main archive comes first.
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

// parseRepositories parses lines of URI, code name and component, and returns the
// repositories of the release's main component, without duplicates.
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
