package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestNotInstalled(t *testing.T) {
	dpkg := "git install ok installed\nrunc deinstall ok config-files\n"
	if got := notInstalled(dpkg, []string{"git", "runc", "socat"}); !reflect.DeepEqual(got, []string{"runc", "socat"}) {
		t.Errorf("got %q", got)
	}
}

func TestParseRepositories(t *testing.T) {
	out := `http://m/debian-security/ bookworm-security main
http://m/debian/ bookworm main
http://m/debian/ bookworm main
http://m/debian/ bookworm contrib
http://m/debian/ trixie main
https://other/ bookworm-pgdg main
`
	want := []repository{
		{"http://m/debian", "bookworm", "main"},
		{"http://m/debian-security", "bookworm-security", "main"},
		{"https://other", "bookworm-pgdg", "main"},
	}
	if got := parseRepositories(out, "bookworm"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestAcquireSettings(t *testing.T) {
	dump := "Acquire \"\";\nAcquire::Check-Date \"false\";\nAcquire::http::Proxy \"http://p\";\nAcquire::IndexTargets \"\";\n"
	want := "Acquire::Check-Date \"false\";\nAcquire::http::Proxy \"http://p\";\n"
	if got := acquireSettings(dump); got != want {
		t.Errorf("got %q", got)
	}
}

func TestRequiredVersion(t *testing.T) {
	gomod := "module x\n\ntool k8s.io/kubernetes/cmd/kubelet\n\nrequire (\n\tk8s.io/kubernetes v1.2.3\n\tk8s.io/api v0.2.3 // indirect\n)\n"
	if got, err := requiredVersion(gomod, "k8s.io/kubernetes"); err != nil || got != "v1.2.3" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := requiredVersion(gomod, "k8s.io/kube"); err == nil {
		t.Error("a module that is not required has a version")
	}
}

// TestSourcesHaveVersions checks that every module names the version that it builds.
func TestSourcesHaveVersions(t *testing.T) {
	for _, src := range sources() {
		if v, err := src.version(); err != nil || !strings.HasPrefix(v, "v") {
			t.Errorf("%s: %q, %v", src.name, v, err)
		}
	}
}

func TestCheckTag(t *testing.T) {
	for tag, good := range map[string]bool{
		"localhost/clew/manager:dev": true, "registry.example:5000/a:1": true, "ghcr.io/a/b:1": true,
		"clew:dev": false, "clew/manager:dev": false, "localhost/clew": false, "localhost:5000/clew": false, "": false,
	} {
		if err := checkTag(tag); (err == nil) != good {
			t.Errorf("%q: %v", tag, err)
		}
	}
}

func TestParseBuild(t *testing.T) {
	req, noLoad, err := parseBuild(strings.Fields("-t localhost/a:1 --build-arg A=1 --build-arg B=2 -no-load /ctx"))
	if err != nil {
		t.Fatal(err)
	}
	if !noLoad {
		t.Error("-no-load is ignored")
	}
	want := buildRequest{tag: "localhost/a:1", dockerfile: "/ctx/Dockerfile", context: "/ctx", args: []string{"A=1", "B=2"}}
	if !reflect.DeepEqual(req, want) {
		t.Errorf("got  %+v\nwant %+v", req, want)
	}
	if _, _, err := parseBuild([]string{"-t", "localhost/a:1"}); err == nil {
		t.Error("a missing context is accepted")
	}
}

func TestIgnoreRules(t *testing.T) {
	rules := parseIgnore("# all but the programs\n*\n!bin\nbin/*.test\n**/node_modules\n")
	for path, skip := range map[string]bool{
		"README.md": true, "bin/clew": false, "bin/x.test": true, "docs/a/b": true, "bin": false, "bin/node_modules": true,
	} {
		if got := rules.skips(path); got != skip {
			t.Errorf("%s: %v, want %v", path, got, skip)
		}
	}
	if !rules.hasExceptions() || parseIgnore("a\n").hasExceptions() {
		t.Error("hasExceptions does not recognise rules with exceptions")
	}
}

func TestInputsHash(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := writeFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("Dockerfile", "FROM x\n")
	write("bin/a", "1")
	write(".git/HEAD", "1")
	write(".dockerignore", ".git\n")
	req := buildRequest{tag: "localhost/a:1", dockerfile: filepath.Join(dir, "Dockerfile"), context: dir}
	sum := func() string {
		t.Helper()
		h, err := inputsHash(imageArchive{key: "base"}, req)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := sum()
	write(".git/HEAD", "2")
	if sum() != first {
		t.Error("a change of an ignored file changes the hash")
	}
	write("bin/a", "2")
	second := sum()
	if second == first {
		t.Error("a change of a file does not change the hash")
	}
	req.args = []string{"A=1"}
	if sum() == second {
		t.Error("an argument does not change the hash")
	}
}

// TestArchive reads an image archive back as a container runtime would.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	layer, out := filepath.Join(dir, "layer"), filepath.Join(dir, "image.tar")
	if err := os.WriteFile(layer, []byte("layer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeArchive(out, "localhost/a:1", layer, imageConfig{Cmd: []string{"/x"}}); err != nil {
		t.Fatal(err)
	}
	files := untar(t, out)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	m := manifest[0]
	if m.RepoTags[0] != "localhost/a:1" || string(files[m.Layers[0]]) != "layer" {
		t.Errorf("manifest is %+v", m)
	}
	var config struct {
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
		Config imageConfig
	}
	if err := json.Unmarshal(files[m.Config], &config); err != nil {
		t.Fatal(err)
	}
	if sum, _ := hashFiles(layer); config.Rootfs.DiffIDs[0] != "sha256:"+sum || config.Config.Cmd[0] != "/x" {
		t.Errorf("config is %s", files[m.Config])
	}
}

func untar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStorageWithTooManyLayersIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		layers int
		kept   bool
	}{
		"few":  {layers: mostLayers, kept: true},
		"many": {layers: mostLayers + 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings{Cache: t.TempDir()}
			if err := tidyStorage(s); err != nil {
				t.Fatalf("without any storage: %v", err)
			}
			for i := range c.layers {
				if err := os.MkdirAll(s.cached("buildah", "storage", "overlay", fmt.Sprint(i)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := tidyStorage(s); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(s.cached("buildah")); (err == nil) != c.kept {
				t.Errorf("the storage is kept: %v, want %v", err == nil, c.kept)
			}
		})
	}
}

func TestAFullDiskIsReportedBeforeTheClusterStarts(t *testing.T) {
	// Nothing can be created in /proc, so a cluster that did start there would fail at once.
	if err := openSandbox(t.Context(), settings{State: "/proc"}, "/no-pause"); err == nil || !strings.Contains(err.Error(), "/proc has 0 MiB left") {
		t.Errorf("the error is %v, want one that says that /proc has 0 MiB left", err)
	}
	if err := checkDisk(t.TempDir() + "/missing"); err == nil {
		t.Error("a missing folder passes the check")
	}
}
