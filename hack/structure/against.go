package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// measureCommit measures a commit's files, which it unpacks into a temporary folder.
func measureCommit(ctx context.Context, commit string) (*state, error) {
	folder, err := os.MkdirTemp("", "clew-structure-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for %s: %w", commit, err)
	}
	defer os.RemoveAll(folder)
	if err := unpack(ctx, commit, folder); err != nil {
		return nil, err
	}
	moved, err := renames(ctx, commit)
	if err != nil {
		return nil, err
	}
	name := commit
	if short, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", commit).Output(); err == nil {
		name = strings.TrimSpace(string(short))
	}
	return measureFolder(folder, name, layers{moved: moved})
}

// unpack writes a commit's Go files into a folder.
func unpack(ctx context.Context, commit, folder string) error {
	git := exec.CommandContext(ctx, "git", "archive", "--format=tar", commit)
	var stderr strings.Builder
	git.Stderr = &stderr
	out, err := git.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read %s: %w", commit, err)
	}
	if err := git.Start(); err != nil {
		return fmt.Errorf("read %s: %w", commit, err)
	}
	unpacked := writeGoFiles(tar.NewReader(out), folder)
	_, rest := io.Copy(io.Discard, out)
	if err := errors.Join(git.Wait(), unpacked, rest); err != nil {
		return fmt.Errorf("read %s: %w\n%s", commit, err, stderr.String())
	}
	return nil
}

func writeGoFiles(archive *tar.Reader, folder string) error {
	for {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.Typeflag != tar.TypeReg || path.Ext(entry.Name) != ".go" {
			continue
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		name := filepath.Join(folder, filepath.FromSlash(entry.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return err
		}
	}
}

// renames asks git which folders the files of a commit's packages are in today. Packages
// that still exist are left out.
func renames(ctx context.Context, commit string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, "git", "diff", "--relative", "--name-status", "--find-renames=40%", "-l0", "--diff-filter=R", commit, "--", "*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("find what was renamed since %s: %w", commit, err)
	}
	moved := foldersMoved(string(out))
	maps.DeleteFunc(moved, func(from, _ string) bool {
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(from), "*.go"))
		return err == nil && len(files) > 0
	})
	return moved, nil
}

// foldersMoved returns, for each folder that files left, the folder that most of them went
// to. A line of git's is R, the similarity, the old path and the new one.
func foldersMoved(lines string) map[string]string {
	counts := map[string]map[string]int{}
	for line := range strings.Lines(lines) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 {
			continue
		}
		from, to := path.Dir(fields[1]), path.Dir(fields[2])
		if counts[from] == nil {
			counts[from] = map[string]int{}
		}
		counts[from][to]++
	}
	moved := map[string]string{}
	for from, targets := range counts {
		for to, n := range targets {
			best, known := moved[from]
			if !known || n > targets[best] || n == targets[best] && to < best {
				moved[from] = to
			}
		}
	}
	return moved
}
