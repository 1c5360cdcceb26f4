package gitstore

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
)

// files verifies the files of the repository that contain objects or lead to them, each once until
// it changes, and reports whether all are as git wrote them. A file that git can make again from the packs, such as an
// index, is made again. Git itself replaces packs from time to time, when it merges them.
func (v *verifier) files() (sound bool, err error) {
	present := map[string]stamp{}
	objects := filepath.Join(v.repository.Path, "objects")
	if err := v.indexPacks(); err != nil {
		return false, err
	}
	err = filepath.WalkDir(objects, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return ignoreMissing(err)
		}
		if !isLoose(path) && !endsWithChecksum(path) {
			return nil
		}
		info, err := entry.Info()
		if err == nil {
			present[path] = stamp{size: info.Size(), modified: info.ModTime()}
		}
		return ignoreMissing(err)
	})
	if err != nil {
		return false, err
	}
	for path, was := range v.known.files {
		now, ok := present[path]
		if ok && now != was {
			v.known.tips = nil
		}
		if !ok && isLoose(path) { // it is in a pack by now, or lost
			v.known.tips = nil
			delete(v.known.files, path)
		}
	}
	for path, is := range present {
		if err := v.file(path, is); err != nil {
			return false, err
		}
	}
	maps.DeleteFunc(v.known.damaged, func(path string, _ stamp) bool { _, ok := present[path]; return !ok })
	return len(v.known.damaged) == 0, nil
}

// file verifies one file unless it was verified before.
func (v *verifier) file(path string, is stamp) error {
	if was, ok := v.known.files[path]; ok && was == is {
		return nil
	}
	if was, ok := v.known.damaged[path]; ok && was == is {
		return nil
	}
	started := time.Now()
	check := hasChecksum
	if isLoose(path) {
		check = hasItsID
	}
	sound, err := check(v.ctx.Err, path)
	v.store.git.effort.charge(v.repository.Namespace, time.Since(started))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if sound {
		v.known.files[path] = is
		return nil
	}
	v.known.tips = nil
	if filepath.Ext(path) == ".pack" || isLoose(path) {
		v.known.damaged[path] = is
		return nil
	}
	return v.remake(path, is)
}

// remake replaces a damaged file that git can make from the packs.
func (v *verifier) remake(path string, is stamp) error {
	if err := os.Remove(path); err != nil {
		return ignoreMissing(err)
	}
	if filepath.Ext(path) != ".idx" {
		return nil // git does without it
	}
	if err := v.indexPacks(); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		v.known.damaged[path] = is
	}
	return nil
}

// indexPacks makes the missing indexes of packs.
func (v *verifier) indexPacks() error {
	return v.store.indexPacks(v.ctx, v.git, v.repository)
}

// endsWithChecksum reports whether git ends files of this name with the SHA-1 of what precedes.
func endsWithChecksum(path string) bool {
	switch filepath.Ext(path) {
	case ".pack", ".idx", ".rev", ".graph":
		return !strings.HasPrefix(filepath.Base(path), "tmp_")
	}
	return filepath.Base(path) == "commit-graph"
}

// isLoose reports whether a file contains one object: it has its id for a name.
func isLoose(path string) bool { return isObjectID(looseID(path)) }

// looseID returns the id of the object that a file contains, if it contains one.
func looseID(path string) string { return filepath.Base(filepath.Dir(path)) + filepath.Base(path) }

// hasItsID reports whether a file contains the object that it is named after. stop returns an error
// once the work is to end.
func hasItsID(stop func() error, path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 64<<10)
	content, err := zlib.NewReader(in)
	hash := sha1.New()
	for err == nil {
		if err = stop(); err != nil {
			return false, err
		}
		_, err = io.CopyN(hash, content, 8<<20)
	}
	broken := flate.CorruptInputError(0)
	switch {
	case errors.As(err, &broken), errors.Is(err, zlib.ErrHeader), errors.Is(err, zlib.ErrChecksum), errors.Is(err, zlib.ErrDictionary):
		return false, nil
	case !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return false, unreadable(err)
	}
	_, err = in.ReadByte()
	return errors.Is(err, io.EOF) && hex.EncodeToString(hash.Sum(nil)) == looseID(path), nil
}

// hasChecksum reports whether a file ends with the SHA-1 of what precedes. stop returns an error
// once the work is to end.
func hasChecksum(stop func() error, path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	left := info.Size() - sha1.Size
	if left < 0 {
		return false, nil
	}
	hash := sha1.New()
	for left > 0 {
		n, err := io.CopyN(hash, file, min(left, 8<<20))
		if err != nil {
			return false, unreadable(err)
		}
		left -= n
		if err := stop(); err != nil {
			return false, err
		}
	}
	var sum [sha1.Size]byte
	if _, err := io.ReadFull(file, sum[:]); err != nil {
		return false, unreadable(err)
	}
	return bytes.Equal(hash.Sum(nil), sum[:]), nil
}

// unreadable returns nil for an error that means that the file cannot be read any more: it
// counts as damaged.
func unreadable(err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return fmt.Errorf("a file of the repository cannot be read: %w", err)
}

// indexPacks makes the missing indexes of packs. A pack that is damaged stays without.
func (s *Store) indexPacks(ctx context.Context, g git, repository Repository) error {
	folder := filepath.Join(repository.Path, "objects", "pack")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, entry := range entries {
		name, isPack := strings.CutSuffix(entry.Name(), ".pack")
		if !isPack || !strings.HasPrefix(name, "pack-") {
			continue
		}
		index := filepath.Join(folder, name+".idx")
		if _, err := os.Lstat(index); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := s.indexPack(ctx, g, filepath.Join(folder, entry.Name()), index); err != nil {
			return err
		}
	}
	return nil
}

// indexPack makes the index of a pack, unless the pack is damaged.
func (s *Store) indexPack(ctx context.Context, g git, pack, index string) error {
	folder, name := filepath.Split(index)
	unfinished := filepath.Join(folder, "tmp_"+name)
	_ = os.Remove(unfinished) // left by a killed process
	defer os.Remove(unfinished)
	// Outside the repository, git does not compare the objects with those it has.
	_, err := g.run(ctx, s.hooks(), "index-pack", "--no-rev-index", "-o", unfinished, pack)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && saysDamaged(err):
		return nil
	case err != nil:
		return err
	}
	if err := os.Chmod(unfinished, 0o444); err != nil {
		return err
	}
	if err := os.Rename(unfinished, index); err != nil {
		return err
	}
	return durable.SyncFolder(folder)
}
