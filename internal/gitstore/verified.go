package gitstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// verifiedFor is how long what was verified is not read again. Every checkpoint is verified
	// once a day.
	verifiedFor = 20 * time.Hour
	// rereadPause is how often at most all of a repository is read again because somebody asks
	// for it, or has met damage: whoever may ask does so as often as they like.
	rereadPause = 5 * time.Minute
	// maxVerifiedTips is how many of the last verified commits are remembered: what they reach
	// is left out of the next verification, which is usually that of the next checkpoint.
	maxVerifiedTips = 200
)

// verified remembers what was verified, by the repository's path.
type verified struct {
	now   func() time.Time
	pause time.Duration

	mu           sync.Mutex
	repositories map[string]*verifiedParts
}

func newVerified(now func() time.Time) *verified {
	return &verified{now: now, pause: rereadPause, repositories: map[string]*verifiedParts{}}
}

// verifiedParts are the parts of one repository that were verified.
type verifiedParts struct {
	// busy holds a value while a request uses the other fields.
	busy  chan struct{}
	since time.Time
	// reread is when all was last read again because somebody asked for it or had met damage.
	reread time.Time
	// suspected is set when git has met damage since.
	suspected atomic.Bool
	// files are the files whose checksum was right, as they were then; damaged are the others.
	files   map[string]stamp
	damaged map[string]stamp
	tips    []string
}

// stamp tells whether a file has changed.
type stamp struct {
	size     int64
	modified time.Time
}

// take waits for the parts of a repository, which the caller uses until it calls release. They
// do not contain what was verified before since, or before git has met damage, unless all was read
// again a short time ago.
func (v *verified) take(ctx context.Context, repository Repository, since time.Time) (parts *verifiedParts, release func(), err error) {
	parts = v.of(repository)
	select {
	case parts.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	now := v.now()
	wanted := parts.since.Before(since) || parts.suspected.Load()
	switch {
	case now.Sub(parts.since) > verifiedFor:
	case wanted && now.Sub(parts.reread) >= v.pause:
		parts.reread = now
	default:
		return parts, func() { <-parts.busy }, nil
	}
	parts.suspected.Store(false)
	parts.forget()
	parts.since = now
	return parts, func() { <-parts.busy }, nil
}

// of returns the parts of a repository.
func (v *verified) of(repository Repository) *verifiedParts {
	v.mu.Lock()
	defer v.mu.Unlock()
	parts := v.repositories[repository.Path]
	if parts == nil {
		parts = &verifiedParts{busy: make(chan struct{}, 1)}
		parts.forget()
		v.repositories[repository.Path] = parts
	}
	return parts
}

// suspect makes everything of a repository be verified again if words, with which git failed to
// read what is stored, tell of damage.
func (v *verified) suspect(repository Repository, words string) {
	if repository.Path != "" && damaged.MatchString(words) {
		v.of(repository).suspected.Store(true)
	}
}

// forget makes everything be verified again.
func (p *verifiedParts) forget() {
	p.files, p.damaged, p.tips = map[string]stamp{}, map[string]stamp{}, nil
}

// add remembers commits whose objects are all intact.
func (p *verifiedParts) add(commits ...string) {
	for _, commit := range commits {
		if !slices.Contains(p.tips, commit) {
			p.tips = append(p.tips, commit)
		}
	}
	p.tips = p.tips[max(0, len(p.tips)-maxVerifiedTips):]
}
