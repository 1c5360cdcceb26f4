package gitstoreapi

// DiffQuery selects what of a difference between two points the gitstore returns.
type DiffQuery struct {
	// From and To are points, such as PointBase.
	From, To string
	// FromCommit and ToCommit, unless empty, are the commits that the points are known to be.
	// If one is another, the answer is the refusal Moved.
	FromCommit, ToCommit string
	// Base is the commit that the task is known to have started from, which one of its refs
	// must reach. If it is empty, the gitstore infers it, see PointBase.
	Base string
	// Paths restrict the difference to files, folders and patterns of the worktree; empty for
	// all.
	Paths []string
	// Ignored includes files that the .gitignore files ignore and the base does not have,
	// such as dependencies and caches.
	Ignored bool
	// Restored makes To the target of a rewind of the files: the answer has every file that the
	// rewind would change. Of a commit that is no checkpoint, it leaves alone, and counts as
	// ignored, what its own .gitignore files name, its submodules, and nested repositories where
	// it has nothing.
	Restored bool
	// After is the number of files to leave out, and Listing how they were listed, both as the
	// page before says.
	After   int
	Listing Listing
	// Limit is the maximum number of files, up to MaxDiffFiles; DefaultDiffFiles if 0.
	Limit int
	// Format says how the content of files is returned; no content if empty.
	Format DiffFormat
}

// Bounds of a page.
const (
	MaxDiffFiles     = 1000
	DefaultDiffFiles = 300
)

// Listing says how the files of a difference were found. The pages of one difference must be
// of one listing.
type Listing string

// The listings.
const (
	// ListingCompared has renamed files and the numbers of lines.
	ListingCompared Listing = "Compared"
	// ListingNames has neither: more differs than git can compare within its limits.
	ListingNames Listing = "Names"
)

// DiffFormat is a form of the difference of a file's content.
type DiffFormat string

// The forms of content.
const (
	// DiffHunks returns hunks, see DiffFile.Hunks.
	DiffHunks DiffFormat = "hunks"
	// DiffPatch returns a patch that git apply accepts, see DiffFile.Patch.
	DiffPatch DiffFormat = "patch"
)

// Points of a task. They are resolved in the gitstore, by refs that only the task's own
// pods could set: a commit id that a record names proves nothing.
const (
	// PointBase is DiffQuery.Base, or else the newest commit before the task's first
	// checkpoint that does not look like a checkpoint.
	PointBase = "base"
	// PointLive is what the task's daemon last pushed of its files while the agent worked.
	PointLive = "live"
	// PointCheckpoint precedes the number of a checkpoint, and PointCommit the id of a commit
	// that one of the task's refs must reach.
	PointCheckpoint = "checkpoint/"
	PointCommit     = "commit/"
)

// PointOf returns a point of another task of the same repository.
func PointOf(taskUID, point string) string { return taskUID + ":" + point }

// Diff is a page of the difference between two points of a repository.
type Diff struct {
	// FromCommit and ToCommit are what the points resolved to.
	FromCommit string `json:"fromCommit"`
	ToCommit   string `json:"toCommit"`
	// Listing says how the files were found.
	Listing Listing `json:"listing"`
	// Totals over the whole difference.
	Totals DiffTotals `json:"totals"`
	// Files by path. Next is the value of DiffQuery.After for the next page; 0 on the last.
	Files []DiffFile `json:"files"`
	Next  int        `json:"next,omitempty"`
	// Unmatched are the paths of a query with Restored that select no file of either commit.
	Unmatched []string `json:"unmatched,omitempty"`
	// Blocked are the first paths of a query with Restored at which To has something and something
	// of From has to stay, as far as the gitstore knows.
	Blocked []string `json:"blocked,omitempty"`
}

// DiffTotals are sums over all files of a difference.
type DiffTotals struct {
	Files        int64 `json:"files"`
	LinesAdded   int64 `json:"linesAdded"`
	LinesRemoved int64 `json:"linesRemoved"`
	BinaryFiles  int64 `json:"binaryFiles,omitempty"`
	// IgnoredFiles is the number of files that differ and are left out as ignored.
	IgnoredFiles int64 `json:"ignoredFiles,omitempty"`
	// UncountedFiles is the number of files whose lines are not included: all of them if
	// more files differ than git can compare within its limits.
	UncountedFiles int64 `json:"uncountedFiles,omitempty"`
}

// DiffAction says what became of a file.
type DiffAction string

// The actions.
const (
	DiffAdded    DiffAction = "Added"
	DiffModified DiffAction = "Modified"
	DiffDeleted  DiffAction = "Deleted"
	DiffRenamed  DiffAction = "Renamed"
)

// DiffFile is one file of a difference. Paths that are not valid UTF-8, or that contain
// control characters, are in git's quoted form.
type DiffFile struct {
	Path    string     `json:"path"`
	OldPath string     `json:"oldPath,omitempty"` // of a renamed file
	Action  DiffAction `json:"action"`
	// OldMode and NewMode are git's, such as 100644, 100755, 120000 (a symbolic link) and
	// 160000 (a nested repository); empty where the file does not exist.
	OldMode string `json:"oldMode,omitempty"`
	NewMode string `json:"newMode,omitempty"`
	// OldBytes and NewBytes are sizes.
	OldBytes     int64 `json:"oldBytes,omitempty"`
	NewBytes     int64 `json:"newBytes,omitempty"`
	Binary       bool  `json:"binary,omitempty"`
	LinesAdded   int64 `json:"linesAdded,omitempty"`
	LinesRemoved int64 `json:"linesRemoved,omitempty"`
	// Hunks, or Patch, are the content, as the query's format says. Patch holds the bytes of
	// the files, which need not be text. Cut is a size in bytes, of the patch or of the file,
	// if the content is left out because it exceeds the limit for one file.
	Hunks []DiffHunk `json:"hunks,omitempty"`
	Patch []byte     `json:"patch,omitempty"`
	Cut   int64      `json:"cut,omitempty"`
}

// DiffHunk is a run of changed lines with the lines around it. Each line begins with a
// space, + or -, or with a backslash for "no newline at end of file".
type DiffHunk struct {
	OldStart int64    `json:"oldStart"`
	OldLines int64    `json:"oldLines"`
	NewStart int64    `json:"newStart"`
	NewLines int64    `json:"newLines"`
	Section  string   `json:"section,omitempty"`
	Lines    []string `json:"lines"`
}
