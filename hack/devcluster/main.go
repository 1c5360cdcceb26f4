// Command devcluster runs a Kubernetes with one node, or two, on this machine, for development and
// tests. It needs root, Debian 12, Debian's package archive and the Go module proxy, but no
// registry of container images.
//
// It promises that `up` can be called at any time and ends with a working cluster, that
// `down` leaves nothing behind except the cache of what was built, and that instances with
// different CLEW_INSTANCE do not affect each other.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "devcluster: "+err.Error())
		os.Exit(1)
	}
}

const usage = `usage: go run . COMMAND

  up                      bring the cluster up, or repair it
  down                    take it down and remove everything but its cache
  status                  list its programs
  kubeconfig              print the path of the administrator's kubeconfig
  load-image ARCHIVE...   load images ("docker save" format) into the node
  build-image -t NAME:TAG [-f DOCKERFILE] [--build-arg K=V]... [--target STAGE] [--host-apt] [--no-load] CONTEXT
                          build an image on ` + baseImage + ` and load it
  node-cut NAME           stop the second node's kubelet, and cut its network
  node-heal NAME          connect it again, and wait until it is ready
  kill PROGRAM...         send SIGKILL to programs of the cluster; up starts them again
  save-etcd FOLDER        copy etcd's data of this moment
  restore-etcd FOLDER     restore etcd's data from such a copy
  smoke                   run a restricted pod with a volume, and check all that it uses

README.md lists the environment variables.`

// dispatch runs one subcommand. Only output that a script may read goes to standard output;
// progress goes to standard error.
func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	s, err := settingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	c := &cluster{settings: s, progress: newProgress(os.Stderr)}
	if s.Current {
		return c.current(ctx, args[0], args[1:])
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		fmt.Println(usage)
		return nil
	}
	if c.Kubernetes, err = kubernetesVersion(); err != nil {
		return err
	}
	if args[0] == "kubeconfig" {
		return c.printKubeconfig()
	}
	if os.Geteuid() != 0 {
		return errors.New("the development cluster needs root, to make network and mount namespaces; use sudo -E, or CLUSTER=current for a cluster of your own")
	}
	switch args[0] {
	case "up":
		return c.up(ctx)
	case "down":
		return c.down(ctx)
	case "status":
		return c.status(ctx)
	case "load-image":
		return c.loadImages(ctx, args[1:])
	case "build-image":
		return c.buildImage(ctx, args[1:])
	case "smoke":
		return c.smoke(ctx)
	}
	return c.dispatchFault(ctx, args)
}

// dispatchFault runs one of the destructive subcommands, which tests use.
func (c *cluster) dispatchFault(ctx context.Context, args []string) error {
	if args[0] == "kill" {
		return c.kill(args[1:])
	}
	faults := map[string]func(context.Context, string) error{"save-etcd": c.saveEtcd, "restore-etcd": c.restoreEtcd, "node-cut": c.cutNode, "node-heal": c.healNode}
	fault, ok := faults[args[0]]
	if ok && len(args) != 2 {
		return fmt.Errorf("%s needs one argument\n%s", args[0], usage)
	}
	if ok {
		return fault(ctx, args[1])
	}
	return fmt.Errorf("there is no command %q\n%s", args[0], usage)
}
