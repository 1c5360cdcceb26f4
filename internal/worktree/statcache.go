package worktree

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"os"
	"strings"
)

// The stat cache stores, between processes, the object id of every file together
// with the attributes that the file had when it was hashed. It is only an
// optimisation: a file whose attributes differ is read again. A cache that is
// damaged is ignored, and one from before a reboot or for other secrets is not
// trusted, since after a power loss a file may have newer attributes than content.

const cacheMagic = "clew-stat-cache-2\n"

// bootID returns an id that changes with each boot of the machine, or "".
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// fingerprint identifies the secrets for which the cache is valid.
func (c *Config) fingerprint() uint64 {
	if c.Secrets == nil {
		return 0
	}
	return uint64(c.Secrets.Fingerprint())
}

// saveCache writes the cache, if anything has changed. It does not use package durable,
// which would sync a large file after every checkpoint for nothing: the cache is not
// trusted after a reboot, and its checksum reveals a torn write.
func (r *Repo) saveCache() error {
	if r.unsaved == 0 {
		return nil
	}
	w := &cacheWriter{}
	w.buf = append(make([]byte, 0, 1<<20), cacheMagic...)
	w.text(bootID())
	w.number(r.cfg.fingerprint())
	w.text(r.base.code)
	w.text(r.base.state)
	w.buf = append(w.buf, r.base.codeTree[:]...)
	w.buf = append(w.buf, r.base.stateTree[:]...)
	w.folder(r.cache.work)
	w.folder(r.cache.home)
	check := sha1.Sum(w.buf)
	w.buf = append(w.buf, check[:]...)
	tmp := r.own("tmp_stat_cache")
	if err := os.WriteFile(tmp, w.buf, 0o600); err != nil {
		return failIO(err, "save the stat cache in %s", r.cfg.GitDir)
	}
	if err := os.Rename(tmp, r.own("stat-cache")); err != nil {
		return failIO(err, "save the stat cache in %s", r.cfg.GitDir)
	}
	r.unsaved = 0
	return nil
}

// loadCache reads the cache. If it cannot be read, the cache stays empty.
func (r *Repo) loadCache() {
	raw, err := os.ReadFile(r.own("stat-cache"))
	if err != nil || len(raw) < len(cacheMagic)+sha1.Size || !bytes.HasPrefix(raw, []byte(cacheMagic)) {
		return
	}
	body, check := raw[:len(raw)-sha1.Size], raw[len(raw)-sha1.Size:]
	if sum := sha1.Sum(body); !bytes.Equal(sum[:], check) {
		return
	}
	c := &cacheReader{buf: body[len(cacheMagic):]}
	boot := c.text()
	secrets := c.number()
	c.trusted = boot != "" && boot == bootID() && secrets == r.cfg.fingerprint()
	base := baseline{code: c.text(), state: c.text()}
	base.codeTree, base.stateTree = c.oid(), c.oid()
	snap := snapshot{work: c.folder(0), home: c.folder(0)}
	if c.err == nil {
		r.cache, r.base = snap, base
	}
}

type cacheWriter struct{ buf []byte }

func (w *cacheWriter) number(n uint64) { w.buf = binary.AppendUvarint(w.buf, n) }

func (w *cacheWriter) text(s string) {
	w.number(uint64(len(s)))
	w.buf = append(w.buf, s...)
}

const (
	flagTrusted = 1 << iota
	flagHidden
	flagLink
)

func (w *cacheWriter) folder(d *dir) {
	if d == nil {
		w.number(0)
		return
	}
	kind := uint64(1)
	if d.partial {
		kind = 2
	}
	w.number(kind)
	w.number(uint64(len(d.entries)))
	for i := range d.entries {
		e := &d.entries[i]
		w.text(e.name)
		w.text(string(e.skip))
		w.number(uint64(e.mode))
		w.number(uint64(e.perm))
		w.number(e.flags())
		if !e.link.isZero() {
			w.buf = append(w.buf, e.link[:]...)
		}
		w.number(uint64(e.stat.size))
		w.number(uint64(e.stat.mtime))
		w.number(uint64(e.stat.ctime))
		w.number(e.stat.ino)
		if e.dir != nil {
			w.number(1)
			w.folder(e.dir)
			continue
		}
		w.number(0)
		w.buf = append(w.buf, e.oid[:]...)
	}
}

func (e *entry) flags() (f uint64) {
	if e.trusted {
		f |= flagTrusted
	}
	if e.hidden {
		f |= flagHidden
	}
	if !e.link.isZero() {
		f |= flagLink
	}
	return f
}

type cacheReader struct {
	buf     []byte
	trusted bool // entries may keep their trusted flag
	err     error
}

var errShortCache = errors.New("the stat cache is truncated")

func (c *cacheReader) number() uint64 {
	n, size := binary.Uvarint(c.buf)
	if size <= 0 {
		c.err = errShortCache
		return 0
	}
	c.buf = c.buf[size:]
	return n
}

func (c *cacheReader) bytes(n uint64) []byte {
	if n > uint64(len(c.buf)) {
		c.err = errShortCache
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

func (c *cacheReader) text() string { return string(c.bytes(c.number())) }

func (c *cacheReader) oid() (o oid) {
	copy(o[:], c.bytes(uint64(len(o))))
	return o
}

// maxDepth is greater than the depth of any path that the kernel can open.
const maxDepth = 4096

func (c *cacheReader) folder(depth int) *dir {
	kind := c.number()
	if kind == 0 || c.err != nil {
		return nil
	}
	d := &dir{partial: kind == 2}
	n := c.number()
	if n > uint64(len(c.buf)) || depth > maxDepth {
		c.err = errShortCache
		return nil
	}
	d.entries = make([]entry, n)
	for i := range d.entries {
		e := &d.entries[i]
		e.name, e.skip = c.text(), SkipReason(c.text())
		e.mode, e.perm = uint32(c.number()), uint32(c.number())
		flags := c.number()
		e.trusted, e.hidden = flags&flagTrusted != 0 && c.trusted, flags&flagHidden != 0
		if flags&flagLink != 0 {
			e.link = c.oid()
		}
		e.stat = fileStat{size: int64(c.number()), mtime: int64(c.number()), ctime: int64(c.number()), ino: c.number()}
		if c.number() == 1 {
			e.dir = c.folder(depth + 1)
			if e.dir == nil {
				e.dir = &dir{}
			}
		} else {
			e.oid = c.oid()
		}
		if c.err != nil {
			return nil
		}
	}
	return d
}
