package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// source is one Go module from which programs of the cluster are built.
type source struct {
	name    string   // of the cache folder, without the version
	dir     string   // the module's folder, below this one
	module  string   // the required module whose version the programs have
	targets []target // the programs to build
	own     []string // our own source files in those programs
	minutes string   // how long the build takes on two cores, roughly
}

type target struct{ pkg, file string }

func sources() []source {
	var kube []target
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"} {
		kube = append(kube, target{"k8s.io/kubernetes/cmd/" + name, name})
	}
	return []source{
		{name: "k8s", dir: ".", module: "k8s.io/kubernetes", targets: kube, minutes: "about 8 minutes"},
		{
			name: "etcd", dir: "etcd", module: "go.etcd.io/etcd/server/v3", minutes: "about a minute",
			targets: []target{{"go.etcd.io/etcd/server/v3", "etcd"}},
		},
		{
			name: "coredns", dir: "coredns", module: "github.com/coredns/coredns", minutes: "about a minute",
			targets: []target{{".", "coredns"}}, own: []string{"coredns/main.go"},
		},
		{
			name: "local-path-provisioner", dir: "localpath", module: "github.com/rancher/local-path-provisioner", minutes: "about a minute",
			targets: []target{{"github.com/rancher/local-path-provisioner", "local-path-provisioner"}},
		},
	}
}

// requiredVersion reads the version of a required module from a go.mod file.
func requiredVersion(gomod, module string) (string, error) {
	re := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(module) + `\s+(v\S+)`)
	m := re.FindStringSubmatch(gomod)
	if m == nil {
		return "", fmt.Errorf("go.mod does not require %s", module)
	}
	return m[1], nil
}

func (src source) version() (string, error) {
	data, err := os.ReadFile(filepath.Join(src.dir, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("%w; run this program in the folder hack/devcluster", err)
	}
	return requiredVersion(string(data), src.module)
}

// kubernetesVersion returns the version that this checkout runs.
func kubernetesVersion() (string, error) { return sources()[0].version() }

// ensureBinaries builds the programs that the cache lacks and returns the paths of all.
func ensureBinaries(ctx context.Context, s settings, p *progress) (binaries, error) {
	dirs := map[string]string{}
	for _, src := range sources() {
		version, err := src.version()
		if err != nil {
			return binaries{}, err
		}
		dir, err := src.cacheDir(s, version)
		if err != nil {
			return binaries{}, err
		}
		if err := src.ensure(ctx, dir, version, p); err != nil {
			return binaries{}, err
		}
		dirs[src.name] = dir
	}
	pause, err := ensurePause(ctx, s, p)
	if err != nil {
		return binaries{}, err
	}
	return binaries{
		kubeDir:     dirs["k8s"],
		etcd:        filepath.Join(dirs["etcd"], "etcd"),
		coredns:     filepath.Join(dirs["coredns"], "coredns"),
		provisioner: filepath.Join(dirs["local-path-provisioner"], "local-path-provisioner"),
		pause:       pause,
	}, nil
}

// cacheDir returns a folder whose name contains everything that determines the programs.
func (src source) cacheDir(s settings, version string) (string, error) {
	name := src.name + "-" + version
	if len(src.own) > 0 {
		hash, err := hashFiles(src.own...)
		if err != nil {
			return "", err
		}
		name += "-" + hash[:12]
	}
	return s.cached(name, "bin"), nil
}

func (src source) ensure(ctx context.Context, dir, version string, p *progress) error {
	for _, t := range src.targets {
		if _, err := os.Stat(filepath.Join(dir, t.file)); err == nil {
			continue
		}
		what := fmt.Sprintf("building %s %s (%s for %s without a build cache)", t.file, version, src.minutes, src.name)
		err := p.step(what, func() error {
			return goBuild(ctx, src.dir, t.pkg, filepath.Join(dir, t.file), versionFlags(src.name, version))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// goBuild builds a static program. The file out appears only once it is complete.
func goBuild(ctx context.Context, dir, pkg, out, ldflags string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.tmp-%d", out, os.Getpid())
	defer os.Remove(tmp)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", tmp, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if _, err := runCmd(cmd); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

// versionFlags returns the linker flags. They give Kubernetes' programs their version,
// without which they refuse to work together.
func versionFlags(name, version string) string {
	flags := []string{"-s", "-w"}
	if name != "k8s" {
		return strings.Join(flags, " ")
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor="+parts[0], "-X", pkg+".gitMinor="+parts[1], "-X", pkg+".gitTreeState=clean")
	}
	return strings.Join(flags, " ")
}

func pauseKey() (string, error) {
	hash, err := hashFiles("pause/main.go")
	if err != nil {
		return "", err
	}
	return "pause-" + hash[:12], nil
}

// ensurePause builds the pause program, which holds the namespaces of pods and of the node
// open.
func ensurePause(ctx context.Context, s settings, p *progress) (string, error) {
	key, err := pauseKey()
	if err != nil {
		return "", err
	}
	out := s.cached(key, "bin", "pause")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	return out, p.step("building pause", func() error { return goBuild(ctx, ".", "./pause", out, "-s -w") })
}
