package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// printKubeconfig prints the path of the cluster's kubeconfig. It is an error if the cluster
// was never brought up.
func (c *cluster) printKubeconfig() error {
	if _, err := os.Stat(c.kubeconfig()); err != nil {
		return fmt.Errorf("there is no cluster in %s; run up first", c.State)
	}
	fmt.Println(c.kubeconfig())
	return nil
}

// status lists the cluster's programs. It is an error if the cluster is not healthy.
func (c *cluster) status(ctx context.Context) error {
	if !c.isState() {
		return fmt.Errorf("there is no cluster in %s; run up first", c.State)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "PROGRAM\tPROCESS\tLOG")
	for _, n := range c.nodes() {
		for _, name := range append([]string{holder}, componentNames(n)...) {
			pid := "-"
			if p, ok := readPID(n.pidFile(name)); ok {
				pid = fmt.Sprint(p.PID)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", name+n.on(), pid, n.logFile(name))
		}
	}
	w.Flush()
	fmt.Printf("API server  %s\nkubeconfig  %s\naudit log   %s\n", c.apiURL(), c.kubeconfig(), c.path(auditFile))
	if problems := c.problems(ctx); len(problems) > 0 {
		return fmt.Errorf("the cluster is not healthy:\n  %s\nrun up to repair it", strings.Join(problems, "\n  "))
	}
	fmt.Println("healthy")
	return nil
}

// loadImages imports archives in the format of "docker save" or of OCI.
func (c *cluster) loadImages(ctx context.Context, files []string) error {
	if len(files) == 0 {
		return errors.New("load-image needs the path of at least one image archive")
	}
	for _, file := range files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return err
		}
		if err := c.progress.step("loading "+file, func() error {
			for _, n := range c.nodes() {
				if err := c.at(n).importArchive(ctx, abs); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// repeated collects a flag that may be given several times.
type repeated []string

func (r *repeated) String() string     { return strings.Join(*r, ",") }
func (r *repeated) Set(v string) error { *r = append(*r, v); return nil }

// parseBuild reads the arguments of build-image.
func parseBuild(args []string) (req buildRequest, noLoad bool, err error) {
	flags := flag.NewFlagSet("build-image", flag.ContinueOnError)
	var buildArgs repeated
	flags.StringVar(&req.tag, "t", "", "name and tag of the image")
	flags.StringVar(&req.dockerfile, "f", "", "Dockerfile (default CONTEXT/Dockerfile)")
	flags.StringVar(&req.target, "target", "", "stage to build (default the last)")
	flags.Var(&buildArgs, "build-arg", "NAME=VALUE, may be repeated")
	flags.BoolVar(&req.hostApt, "host-apt", false, "let apt in the build fetch as apt on this machine does")
	flags.BoolVar(&noLoad, "no-load", false, "only build, and print the archive's path")
	if err := flags.Parse(args); err != nil {
		return req, noLoad, err
	}
	if flags.NArg() != 1 {
		return req, noLoad, fmt.Errorf("build-image needs one CONTEXT folder, not %d arguments", flags.NArg())
	}
	if err := checkTag(req.tag); err != nil {
		return req, noLoad, err
	}
	if req.context, err = filepath.Abs(flags.Arg(0)); err != nil {
		return req, noLoad, err
	}
	if req.dockerfile == "" {
		req.dockerfile = filepath.Join(req.context, "Dockerfile")
	}
	req.args = buildArgs
	return req, noLoad, nil
}

// buildImage builds an image unless its inputs are unchanged, loads it into the node and
// prints the path of its archive.
func (c *cluster) buildImage(ctx context.Context, args []string) error {
	req, noLoad, err := parseBuild(args)
	if err != nil {
		return err
	}
	if err := ensurePackages(ctx, c.progress); err != nil {
		return err
	}
	unlock, err := c.lockFile("images")
	if err != nil {
		return err
	}
	defer unlock()
	_, base, _, err := ownImages(c.settings)
	if err != nil {
		return err
	}
	if err := ensureBaseImage(ctx, base, c.progress); err != nil {
		return err
	}
	hash, err := inputsHash(base, req)
	if err != nil {
		return err
	}
	// There is one archive per name, since builds are frequent and archives large.
	a := imageArchive{ref: req.tag, key: hash, file: c.cached("built", shortHash([]byte(req.tag)), "image.tar")}
	stamp := a.file + ".inputs"
	had, _ := os.ReadFile(stamp)
	if _, err := os.Stat(a.file); err != nil || string(had) != hash {
		os.Remove(stamp)
		if err := os.MkdirAll(filepath.Dir(a.file), 0o755); err != nil {
			return err
		}
		if err := c.progress.step("building image "+req.tag, func() error { return buildArchive(ctx, c.settings, base, req, a.file) }); err != nil {
			return err
		}
		if err := writeFile(stamp, []byte(hash), 0o644); err != nil {
			return err
		}
	}
	fmt.Println(a.file)
	if noLoad {
		return nil
	}
	if c.Current {
		c.progress.say("CLUSTER=current: %s is built but not loaded; push it to a registry that your cluster pulls from.", req.tag)
		return nil
	}
	return c.load(ctx, a)
}
