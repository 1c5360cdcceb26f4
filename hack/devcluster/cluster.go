package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// cluster is one instance, with the progress that is shown to the user.
type cluster struct {
	settings
	progress *progress
}

// lock keeps two runs from working on one instance. The caller calls the function that it
// returns to unlock.
func (c *cluster) lock() (func(), error) { return c.lockFile(c.name()) }

// lockFile waits until no other run holds the lock with a name, and takes it.
func (c *cluster) lockFile(name string) (func(), error) {
	file := c.cached("locks", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		c.progress.say("waiting for another run on %s", name)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return nil, err
		}
	}
	return func() { f.Close() }, nil
}

// up brings the cluster up from any state.
func (c *cluster) up(ctx context.Context) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.checkState(); err != nil {
		return err
	}
	if problems := c.problems(ctx); len(problems) == 0 {
		c.progress.say("The cluster is up (%s).", c.kubeconfig())
		return nil
	}
	kind := "a single-node"
	if c.Nodes == 2 {
		kind = "a two-node"
	}
	c.progress.say("Bringing up %s Kubernetes %s in %s.", kind, c.Kubernetes, c.State)
	bins, images, err := c.ensureParts(ctx)
	if err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := c.prepare(ctx, bins); err != nil {
		return err
	}
	if err := c.start(ctx, bins, images); err != nil {
		return err
	}
	c.progress.say("The cluster is up after %s.\n  export KUBECONFIG=%s\n  kubectl of the same version: %s", c.progress.total(), c.kubeconfig(), bins.kube("kubectl"))
	return nil
}

// ensureParts installs and builds what the machine and the cache lack. All instances share
// the cache, so only one run may do this at a time.
func (c *cluster) ensureParts(ctx context.Context) (binaries, []imageArchive, error) {
	unlock, err := c.lockFile("images")
	if err != nil {
		return binaries{}, nil, err
	}
	defer unlock()
	if err := ensurePackages(ctx, c.progress); err != nil {
		return binaries{}, nil, err
	}
	bins, err := ensureBinaries(ctx, c.settings, c.progress)
	if err != nil {
		return binaries{}, nil, err
	}
	images, err := ensureImages(ctx, c.settings, bins, c.progress)
	return bins, images, err
}

// checkState refuses a state folder with foreign files, or whose cluster was brought up with
// other settings.
func (c *cluster) checkState() error {
	diffs, err := c.conflicts()
	if err != nil {
		return err
	}
	if len(diffs) > 0 {
		return fmt.Errorf("a cluster with other settings is in %s: %s; run down first, or choose another CLEW_INSTANCE", c.State, strings.Join(diffs, "; "))
	}
	if c.isState() {
		return nil
	}
	entries, err := os.ReadDir(c.State)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("%s has files that do not belong to a cluster; set CLEW_STATE to a folder that is empty or does not exist", c.State)
	}
	return nil
}

// isState reports whether up made the state folder.
func (c *cluster) isState() bool {
	_, err := os.Stat(c.path("settings.json"))
	return err == nil
}

// problems returns the reasons why the cluster is not up and healthy.
func (c *cluster) problems(ctx context.Context) []string {
	var out []string
	for _, n := range c.nodes() {
		for _, name := range append([]string{holder}, componentNames(n)...) {
			if _, ok := readPID(n.pidFile(name)); !ok {
				out = append(out, name+" does not run"+n.on())
			}
		}
	}
	if _, err := os.Stat(c.path("complete")); err != nil {
		out = append(out, "bringing it up never finished")
	}
	pause, base, postgres, err := ownImages(c.settings)
	if err != nil {
		return append(out, err.Error())
	}
	for _, a := range []imageArchive{pause, base, postgres} {
		if !c.loaded(a) {
			out = append(out, "image "+a.ref+" differs from the one that this checkout builds")
		}
	}
	if len(out) > 0 {
		return out
	}
	checks := []func(context.Context) error{c.apiReady}
	for _, n := range c.nodes() {
		checks = append(checks, func(ctx context.Context) error { return n.nodeReady(ctx, time.Time{}) })
	}
	for _, check := range append(checks, c.servicesReady) {
		if err := check(ctx); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

func componentNames(s settings) []string {
	var names []string
	for _, comp := range components(s, binaries{}) {
		names = append(names, comp.name)
	}
	return names
}

// prepare opens the node's namespaces unless they are open, and writes all configuration.
func (c *cluster) prepare(ctx context.Context, bins binaries) error {
	open := func(n settings) bool {
		_, ok := readPID(n.pidFile(holder))
		return ok
	}
	if !open(c.settings) || !open(c.nodes()[len(c.nodes())-1]) {
		err := c.progress.step("clearing what an earlier run left", func() error { return clear(ctx, c.settings, true) })
		if err != nil {
			return err
		}
		if err := rememberKernel(c.settings); err != nil {
			return err
		}
		if err := makeProgramsCgroup(c.programs()); err != nil {
			return err
		}
		for _, n := range c.nodes() {
			if err := makeCgroups(n.nodeName()); err != nil {
				return err
			}
			if err := c.progress.step("opening the node's namespaces"+n.on(), func() error { return openSandbox(ctx, n, bins.pause) }); err != nil {
				return err
			}
		}
	}
	return writeConfigs(c.settings)
}

// start starts the programs that do not run and waits until they are ready.
func (c *cluster) start(ctx context.Context, bins binaries, images []imageArchive) error {
	var kubeletStart time.Time
	if _, ok := readPID(c.pidFile("kubelet")); !ok {
		kubeletStart = time.Now()
	}
	if err := c.startPrograms(ctx, bins); err != nil {
		return err
	}
	if err := c.progress.step("creating DNS and storage", func() error { return c.apply(ctx, bins, manifests(c.settings)) }); err != nil {
		return err
	}
	for _, a := range images {
		if err := c.load(ctx, a); err != nil {
			return err
		}
	}
	for _, wait := range []struct {
		what  string
		check func(context.Context) error
	}{
		{"waiting for the node", func(ctx context.Context) error {
			for _, n := range c.nodes() {
				if err := n.nodeReady(ctx, kubeletStart); err != nil {
					return err
				}
			}
			return nil
		}},
		{"waiting for kubelet to know its pods", c.podsKnown},
		{"waiting for services and DNS", c.servicesReady},
		{"waiting for the default service account", func(ctx context.Context) error {
			_, err := c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
			return err
		}},
	} {
		err := c.progress.step(wait.what, func() error {
			return waitFor(ctx, time.Minute, func(ctx context.Context) error {
				if err := c.anyNodeDead(); err != nil {
					return err
				}
				return wait.check(ctx)
			})
		})
		if err != nil {
			return fmt.Errorf("%w\nthe logs are in %s", err, c.path("log"))
		}
	}
	return writeFile(c.path("complete"), nil, 0o644)
}

// startPrograms starts the programs of all nodes that do not run, and connects those that were cut off.
func (c *cluster) startPrograms(ctx context.Context, bins binaries) error {
	for _, n := range c.nodes() {
		node := c.at(n)
		if n.isSecond {
			if err := node.reconnect(ctx); err != nil {
				return err
			}
		}
		for _, comp := range components(n, bins) {
			if err := node.startOne(ctx, comp); err != nil {
				return err
			}
		}
	}
	return nil
}

// anyDead returns an error that ends waitFor if a program has ended.
func (c *cluster) anyDead() error {
	for _, name := range componentNames(c.settings) {
		if _, ok := readPID(c.pidFile(name)); !ok {
			return hopelessError{c.whyDead(name)}
		}
	}
	return nil
}

// whyDead returns an error with the last lines of a program's log.
func (c *cluster) whyDead(name string) error {
	log, _ := os.ReadFile(c.logFile(name))
	return fmt.Errorf("%s ended; the last lines of %s:\n%s", name, c.logFile(name), lastLines(string(log), 8))
}

// startOne starts a program in the node's namespaces, unless it runs.
func (c *cluster) startOne(ctx context.Context, comp component) error {
	if _, ok := readPID(c.pidFile(comp.name)); ok {
		return nil
	}
	return c.progress.step("starting "+comp.name+c.on(), func() error {
		h, ok := readPID(c.pidFile(holder))
		if !ok {
			return errors.New("the node's namespaces are gone; run up again")
		}
		if err := spawn(c.pidFile(comp.name), c.logFile(comp.name), append(enter(h), comp.argv...), cleanEnv(os.Environ())); err != nil {
			return err
		}
		if p, ok := readPID(c.pidFile(comp.name)); ok {
			if err := join(c.programs(), p.PID); err != nil {
				return err
			}
		}
		if comp.ready == nil {
			return nil
		}
		return waitFor(ctx, comp.limit, func(ctx context.Context) error {
			if _, ok := readPID(c.pidFile(comp.name)); !ok {
				return hopelessError{c.whyDead(comp.name)}
			}
			return comp.ready(ctx)
		})
	})
}

// apply applies manifests. It retries, because right after the start the API server may
// still refuse objects in namespaces that it is about to create, and kubectl's discovery
// fails for aggregated APIs whose servers cannot be reached yet.
func (c *cluster) apply(ctx context.Context, bins binaries, yaml string) error {
	return waitFor(ctx, 2*time.Minute, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, bins.kube("kubectl"), "--kubeconfig", c.kubeconfig(), "--cache-dir", c.path("kubectl"), "apply", "-f", "-")
		cmd.Env, cmd.Stdin = cleanEnv(os.Environ()), strings.NewReader(yaml)
		_, err := runCmd(cmd)
		return err
	})
}

// mark returns the file in the state folder that records a loaded image, and its content.
func (c *cluster) mark(a imageArchive) (file, text string) {
	return c.own("images", shortHash([]byte(a.ref))), a.ref + " " + a.key + "\n"
}

// loaded reports whether every node has an image.
func (c *cluster) loaded(a imageArchive) bool {
	for _, n := range c.nodes() {
		if !c.at(n).has(a) {
			return false
		}
	}
	return true
}

// has reports whether the node has an image.
func (c *cluster) has(a imageArchive) bool {
	file, text := c.mark(a)
	had, err := os.ReadFile(file)
	return err == nil && string(had) == text
}

// load loads an image into every node that lacks it.
func (c *cluster) load(ctx context.Context, a imageArchive) error {
	for _, n := range c.nodes() {
		if err := c.at(n).loadHere(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// loadHere loads an image into the node, unless the node has it.
func (c *cluster) loadHere(ctx context.Context, a imageArchive) error {
	if c.has(a) {
		return nil
	}
	return c.progress.step("loading image "+a.ref+c.on(), func() error {
		if err := c.importArchive(ctx, a.file); err != nil {
			return err
		}
		file, text := c.mark(a)
		return writeFile(file, []byte(text), 0o644)
	})
}

func (c *cluster) importArchive(ctx context.Context, file string) error {
	h, ok := readPID(c.pidFile(holder))
	if !ok {
		return errors.New("the cluster is not up; run up first")
	}
	_, err := runCmd(sandboxed(ctx, h, "ctr", "-a", c.containerdSocket(), "-n", "k8s.io", "images", "import", "--snapshotter", "overlayfs", file))
	return err
}

// down takes the cluster down. It is an error, with a list, if anything is left.
func (c *cluster) down(ctx context.Context) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	_, err = os.Stat(c.State)
	if err == nil && !c.isState() {
		return fmt.Errorf("%s is not a cluster's folder (it has no settings.json), so it is left alone", c.State)
	}
	there := len(leftovers(ctx, c.settings)) > 0
	if there {
		err := c.progress.step("taking down "+c.name(), func() error {
			if err := clear(ctx, c.settings, false); err != nil {
				return err
			}
			restoreKernel(c.settings)
			removeMade(c.settings)
			return os.RemoveAll(c.State)
		})
		if err != nil {
			return err
		}
	}
	if left := leftovers(ctx, c.settings); len(left) > 0 {
		return fmt.Errorf("down left behind:\n  %s", strings.Join(left, "\n  "))
	}
	if !there {
		c.progress.say("There is no cluster %s; nothing to do.", c.name())
		return nil
	}
	c.progress.say("No process, mount, interface, rule, control group or file of %s is left. The cache stays in %s.", c.name(), c.Cache)
	return nil
}
