package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// buildRequest is one image to be built from a Dockerfile.
type buildRequest struct {
	tag        string // full name, with the registry's host
	dockerfile string
	context    string
	target     string   // stage, or empty for the last
	args       []string // name=value
	hostApt    bool     // let the build use this machine's apt and TLS settings
}

// buildArchive builds an image with buildah and writes it to out.
func buildArchive(ctx context.Context, s settings, base imageArchive, req buildRequest, out string) error {
	if err := tidyStorage(s); err != nil {
		return err
	}
	if err := ensureBaseInStorage(ctx, s, base); err != nil {
		return err
	}
	args := []string{"build", "--isolation", "chroot", "--layers", "--pull-never", "-q", "-t", req.tag, "-f", req.dockerfile}
	for _, a := range req.args {
		args = append(args, "--build-arg", a)
	}
	if req.target != "" {
		args = append(args, "--target", req.target)
	}
	if req.hostApt {
		volumes, err := hostAptVolumes(ctx, s)
		if err != nil {
			return err
		}
		args = append(args, volumes...)
	}
	if err := buildah(ctx, s, append(args, req.context)...); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.tmp-%d", out, os.Getpid())
	os.Remove(tmp)
	defer os.Remove(tmp)
	if err := buildah(ctx, s, "push", "-q", req.tag, "docker-archive:"+tmp+":"+req.tag); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

// containersDir is a folder to which buildah writes to regardless of its options.
const containersDir = "/var/lib/containers"

// buildah runs buildah with a storage in the cache. It runs in its own mount namespace, so
// that it leaves neither a mount nor a file outside the cache. The caller holds the lock of
// images.
func buildah(ctx context.Context, s settings, args ...string) error {
	notes := s.cached("buildah", "notes")
	if err := os.MkdirAll(notes, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(containersDir); os.IsNotExist(err) {
		if err := os.Mkdir(containersDir, 0o755); err != nil {
			return err
		}
		defer os.Remove(containersDir)
	}
	all := append([]string{
		"--mount", "--propagation", "private", "--",
		"sh", "-c", `mount --bind "$1" "$2" && shift 2 && exec buildah "$@"`, "buildah", notes, containersDir,
		"--root", s.cached("buildah", "storage"), "--runroot", s.cached("buildah", "run"), "--storage-driver", "overlay",
	}, args...)
	_, err := run(ctx, "unshare", all...)
	return err
}

// mostLayers is the most layers that buildah keeps. Each change of a program leaves layers
// that no later build uses; 187 of them took 15 GB.
const mostLayers = 100

// tidyStorage removes buildah's storage when it has too many layers. Built images are kept
// elsewhere; the next build of each takes longer, once. The caller holds the lock of images.
func tidyStorage(s settings) error {
	layers, err := os.ReadDir(s.cached("buildah", "storage", "overlay"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(layers) <= mostLayers {
		return err
	}
	return os.RemoveAll(s.cached("buildah"))
}

// ensureBaseInStorage imports the base image into buildah's storage.
func ensureBaseInStorage(ctx context.Context, s settings, base imageArchive) error {
	marker := s.cached("buildah", base.key)
	if _, err := os.Stat(marker); err == nil {
		return nil
	}
	if err := buildah(ctx, s, "pull", "-q", "docker-archive:"+base.file); err != nil {
		return err
	}
	return writeFile(marker, nil, 0o644)
}

// hostAptVolumes returns buildah flags that make apt in a build use the proxies and the
// certificate authorities of apt on this machine.
func hostAptVolumes(ctx context.Context, s settings) ([]string, error) {
	out, err := run(ctx, "apt-config", "dump", "Acquire")
	if err != nil {
		return nil, err
	}
	conf := s.cached("buildah", "apt.conf")
	if err := writeFile(conf, []byte(acquireSettings(out)), 0o644); err != nil {
		return nil, err
	}
	args := []string{"-v", conf + ":/etc/apt/apt.conf.d/99-host:ro"}
	const authorities = "/etc/ssl/certs/ca-certificates.crt"
	if _, err := os.Stat(authorities); err == nil {
		args = append(args, "-v", authorities+":"+authorities+":ro")
	}
	return args, nil
}

// acquireSettings returns those of apt's settings that control how it fetches.
func acquireSettings(dump string) string {
	var b strings.Builder
	for _, line := range strings.Split(dump, "\n") {
		for _, prefix := range []string{"Acquire::Check-", "Acquire::http", "Acquire::https", "Acquire::Retries"} {
			if strings.HasPrefix(line, prefix) {
				b.WriteString(line + "\n")
				break
			}
		}
	}
	return b.String()
}

// inputsHash returns a hash of everything that a build depends on.
func inputsHash(base imageArchive, req buildRequest) (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	if err := enc.Encode([]any{base.key, req.tag, req.target, req.args}); err != nil {
		return "", err
	}
	dockerfile, err := os.ReadFile(req.dockerfile)
	if err != nil {
		return "", err
	}
	h.Write(dockerfile)
	ignored, err := readIgnore(req.context)
	if err != nil {
		return "", err
	}
	err = filepath.WalkDir(req.context, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(req.context, file)
		if err != nil || rel == "." {
			return err
		}
		if ignored.skips(filepath.ToSlash(rel)) {
			if d.IsDir() && !ignored.hasExceptions() {
				return fs.SkipDir
			}
			if !d.IsDir() {
				return nil
			}
		}
		return hashEntry(h, rel, file, d)
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

func hashEntry(h io.Writer, rel, file string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%q %o\n", rel, info.Mode())
	switch {
	case info.Mode().IsRegular():
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(h, "%d\n", info.Size())
		_, err = io.Copy(h, f)
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(file)
		fmt.Fprintf(h, "%q\n", to)
		return err
	}
	return nil
}

// ignoreRules are the lines of a .dockerignore file. The last line that matches wins.
type ignoreRules []string

func readIgnore(dir string) (ignoreRules, error) {
	for _, name := range []string{".containerignore", ".dockerignore"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			return parseIgnore(string(data)), nil
		}
		if !os.IsNotExist(err) {
			return nil, err
		}
	}
	return nil, nil
}

func parseIgnore(text string) ignoreRules {
	var rules ignoreRules
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			rules = append(rules, line)
		}
	}
	return rules
}

func (r ignoreRules) hasExceptions() bool {
	for _, rule := range r {
		if strings.HasPrefix(rule, "!") {
			return true
		}
	}
	return false
}

// skips reports whether the file rel, or a folder above it, is ignored. Where it does not
// understand a "**", the hash covers more than the image, which is harmless.
func (r ignoreRules) skips(rel string) bool {
	skip := false
	for _, rule := range r {
		pattern, except := strings.CutPrefix(rule, "!")
		pattern = strings.Trim(path.Clean(pattern), "/")
		for p := rel; p != "." && p != "/"; p = path.Dir(p) {
			tail, anywhere := strings.CutPrefix(pattern, "**/")
			ok, _ := path.Match(pattern, p)
			if anywhere && !ok {
				ok, _ = path.Match(tail, path.Base(p))
			}
			if ok {
				skip = !except
				break
			}
		}
	}
	return skip
}

// checkTag refuses names that the node would look up elsewhere: Kubernetes takes a name
// without a host for an image of Docker Hub.
func checkTag(tag string) error {
	host, rest, ok := strings.Cut(tag, "/")
	if !ok || rest == "" || (host != "localhost" && !strings.ContainsAny(host, ".:")) {
		return fmt.Errorf("image name %q must begin with a host, such as localhost/clew-dev/NAME:TAG; without one Kubernetes looks for it on Docker Hub", tag)
	}
	if i := strings.LastIndexByte(rest, ':'); i < 0 || strings.Contains(rest[i:], "/") {
		return fmt.Errorf("image name %q needs a tag, as in %s:dev; without one Kubernetes always pulls", tag, tag)
	}
	return nil
}
