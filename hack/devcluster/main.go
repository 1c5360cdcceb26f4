// Command devcluster runs a real Kubernetes of one node on this machine, for
// development and tests. It needs root, Debian 12, its package archive and
// the Go module proxy, and no registry of container images.
//
// It promises that `up` may be called at any time and ends with a cluster that
// works, that `down` leaves nothing behind but the cache of what was built,
// and that instances with different CLEW_INSTANCE do not meet.
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
  down                    take it down and all that belongs to it
  status                  say what runs
  kubeconfig              print the path of the administrator's kubeconfig
  load-image ARCHIVE...   bring images ("docker save" format) into the node
  build-image -t NAME:TAG [-f DOCKERFILE] [--build-arg K=V]... [--target STAGE] [--host-apt] [--no-load] CONTEXT
                          build an image on ` + baseImage + ` and load it
  kill PROGRAM...         end programs of the cluster as a crash does; up starts them again
  save-etcd FOLDER        copy etcd's data as it is at this moment
  restore-etcd FOLDER     put etcd's data back to a copy, as a restore from a backup does
  smoke                   run a restricted pod with a volume, and look at it from all sides

README.md says which environment variables there are.`

// dispatch runs one subcommand. Only what a script may want to read goes to
// standard output; progress goes to standard error.
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
		return errors.New("the development cluster needs root: it makes network and mount namespaces; use sudo -E, or CLUSTER=current for a cluster of your own")
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

// dispatchFault runs one of the subcommands that do harm, for tests.
func (c *cluster) dispatchFault(ctx context.Context, args []string) error {
	if args[0] == "kill" {
		return c.kill(args[1:])
	}
	faults := map[string]func(context.Context, string) error{"save-etcd": c.saveEtcd, "restore-etcd": c.restoreEtcd}
	fault, ok := faults[args[0]]
	if ok && len(args) != 2 {
		return fmt.Errorf("%s needs the path of one folder", args[0])
	}
	if ok {
		return fault(ctx, args[1])
	}
	return fmt.Errorf("there is no command %q\n%s", args[0], usage)
}
