package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// current runs a subcommand with CLUSTER=current: the cluster belongs to the user, and is
// never started, stopped or changed.
func (c *cluster) current(ctx context.Context, command string, args []string) error {
	switch command {
	case "up", "status":
		name, err := kubectl(ctx, "config", "current-context")
		if err != nil {
			return fmt.Errorf("CLUSTER=current needs a kubeconfig with a current context: %w", err)
		}
		name = strings.TrimSpace(name)
		out, err := kubectl(ctx, "get", "--raw", "/version", "--request-timeout=10s")
		if err != nil {
			return fmt.Errorf("the cluster of context %s cannot be reached: %w", name, err)
		}
		var version struct{ GitVersion string }
		if err := json.Unmarshal([]byte(out), &version); err != nil {
			return fmt.Errorf("the server of context %s is not a Kubernetes API server: %w", name, err)
		}
		c.progress.say("Using the cluster of the current context, %s (Kubernetes %s).", name, version.GitVersion)
		return nil
	case "down":
		c.progress.say("CLUSTER=current: the cluster is yours and stays as it is.")
		return nil
	case "kubeconfig":
		path, err := currentKubeconfig(os.Getenv)
		if err != nil {
			return err
		}
		fmt.Println(path)
		return nil
	case "load-image":
		c.progress.say("CLUSTER=current: images cannot be loaded into your cluster from here; push %s to a registry that it pulls from.", strings.Join(args, " "))
		return nil
	case "build-image":
		return c.buildImage(ctx, args)
	}
	return fmt.Errorf("with CLUSTER=current there is no command %q\n%s", command, usage)
}

// currentKubeconfig returns the path, or the list of paths, that kubectl reads.
func currentKubeconfig(getenv func(string) string) (string, error) {
	if v := getenv("KUBECONFIG"); v != "" {
		return v, nil
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".kube", "config"), nil
	}
	return "", errors.New("neither KUBECONFIG nor HOME is set, so there is no current kubeconfig")
}

func kubectl(ctx context.Context, args ...string) (string, error) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		return "", errors.New("kubectl is not on the PATH")
	}
	return run(ctx, "kubectl", args...)
}
