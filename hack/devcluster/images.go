package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	postgresImage = "localhost/clew-dev/postgres:15"
	debianRelease = "bookworm"
)

//go:embed images/postgres
var postgresContext embed.FS

// imageArchive is an image in a file, in the format that "docker save" writes.
type imageArchive struct {
	ref  string
	file string
	// key distinguishes two contents of one ref.
	key string
}

// basePackages returns the packages in the base image beside Debian's minimum.
func basePackages() []string { return []string{"ca-certificates", "curl", "git", "openssh-client"} }

// basePrune returns what is removed from the base image to make it smaller.
func basePrune() []string {
	return []string{"var/lib/apt/lists/*", "var/cache/apt/*", "var/log/*", "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*"}
}

// ownImages describes the cluster's own images: their content, by key, and the files of
// their archives, whether they exist or not.
func ownImages(s settings) (pause, base, postgres imageArchive, err error) {
	pauseKey, err := pauseKey()
	if err != nil {
		return pause, base, postgres, err
	}
	recipe := strings.Join([]string{"1", debianRelease, strings.Join(basePackages(), ","), strings.Join(basePrune(), ",")}, "|")
	baseKey := "base-" + shortHash([]byte(recipe))
	h := sha256.New()
	io.WriteString(h, baseKey)
	err = fs.WalkDir(postgresContext, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := postgresContext.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(data), data)
		return err
	})
	image := func(ref, key string) imageArchive {
		return imageArchive{ref: ref, key: key, file: s.cached(key, "image.tar")}
	}
	return image(pauseImage, pauseKey), image(baseImage, baseKey), image(postgresImage, "postgres-"+hex.EncodeToString(h.Sum(nil))[:12]), err
}

// ensureImages makes the archives of the cluster's own images that are missing.
func ensureImages(ctx context.Context, s settings, bins binaries, p *progress) ([]imageArchive, error) {
	pause, base, postgres, err := ownImages(s)
	if err != nil {
		return nil, err
	}
	if err := ensurePauseImage(pause, bins); err != nil {
		return nil, err
	}
	if err := ensureBaseImage(ctx, base, p); err != nil {
		return nil, err
	}
	if _, err := os.Stat(postgres.file); err != nil {
		err := p.step("making the PostgreSQL image", func() error { return makePostgres(ctx, s, base, postgres) })
		if err != nil {
			return nil, err
		}
	}
	return []imageArchive{pause, base, postgres}, nil
}

func ensurePauseImage(a imageArchive, bins binaries) error {
	if _, err := os.Stat(a.file); err == nil {
		return nil
	}
	program, err := os.ReadFile(bins.pause)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := tw.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return err
	}
	if _, err := tw.Write(program); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	tmp := a.file + ".layer"
	defer os.Remove(tmp)
	if err := os.WriteFile(tmp, layer.Bytes(), 0o644); err != nil {
		return err
	}
	return writeArchive(a.file, a.ref, tmp, imageConfig{Entrypoint: []string{"/pause"}, User: "65535:65535"})
}

func ensureBaseImage(ctx context.Context, a imageArchive, p *progress) error {
	if _, err := os.Stat(a.file); err == nil {
		return nil
	}
	return p.step("making the base image of Debian "+debianRelease+" (about a minute)", func() error { return makeBase(ctx, a) })
}

// makeBase makes the base image's archive with debootstrap.
func makeBase(ctx context.Context, a imageArchive) error {
	repos, err := repositories(ctx, debianRelease)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(a.file), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(a.file), "work-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	// In a mount namespace of its own, debootstrap cannot leave mounts behind.
	_, err = run(ctx, "unshare", "--mount", "--propagation", "private", "--",
		"debootstrap", "--variant=minbase", "--include="+strings.Join(basePackages(), ","), debianRelease, root, repos[0].URI)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "etc/apt/sources.list"), []byte(sourcesList(repos)), 0o644); err != nil {
		return err
	}
	for _, pattern := range basePrune() {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, m := range matches {
			if err := os.RemoveAll(m); err != nil {
				return err
			}
		}
	}
	layer := filepath.Join(work, "layer.tar")
	if _, err := run(ctx, "tar", "--sort=name", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "-C", root, "-cf", layer, "."); err != nil {
		return err
	}
	return writeArchive(a.file, a.ref, layer, imageConfig{Cmd: []string{"/bin/bash"}})
}

func sourcesList(repos []repository) string {
	var b strings.Builder
	for _, r := range repos {
		fmt.Fprintf(&b, "deb %s %s %s\n", r.URI, r.Codename, r.Component)
	}
	return b.String()
}

func makePostgres(ctx context.Context, s settings, base, a imageArchive) error {
	if err := os.MkdirAll(filepath.Dir(a.file), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(a.file), "work-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, mode := range map[string]os.FileMode{"Dockerfile": 0o644, "entrypoint.sh": 0o755} {
		data, err := postgresContext.ReadFile("images/postgres/" + name)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, name), data, mode); err != nil {
			return err
		}
	}
	return buildArchive(ctx, s, base, buildRequest{
		tag: a.ref, dockerfile: filepath.Join(dir, "Dockerfile"), context: dir, args: []string{"BASE=" + base.ref}, hostApt: true,
	}, a.file)
}

// imageConfig is the default process of the image's containers.
type imageConfig struct {
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	User       string   `json:",omitempty"`
	Env        []string `json:",omitempty"`
}

// writeArchive writes an image with one layer, the tar file layer.
func writeArchive(out, ref, layer string, config imageConfig) error {
	sum, err := hashFiles(layer)
	if err != nil {
		return err
	}
	config.Env = append(config.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	configJSON, err := json.Marshal(map[string]any{
		"architecture": goArch(), "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
		"history": []any{map[string]any{"created": "1970-01-01T00:00:00Z", "created_by": "hack/devcluster"}},
	})
	if err != nil {
		return err
	}
	configName := hex.EncodeToString(sha256Sum(configJSON)) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{ref}, "Layers": []string{sum + ".tar"}}})
	if err != nil {
		return err
	}
	tmp := out + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	defer f.Close()
	tw := tar.NewWriter(f)
	if err := addFile(tw, sum+".tar", layer); err != nil {
		return err
	}
	for name, data := range map[string][]byte{configName: configJSON, "manifest.json": manifest} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

func addFile(tw *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}
