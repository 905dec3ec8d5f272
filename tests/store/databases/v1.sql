BEGIN TRANSACTION;
CREATE TABLE events (
	session_id TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	call_id TEXT, 
	kind TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	data TEXT NOT NULL, 
	blob BLOB, 
	PRIMARY KEY (session_id, seq), 
	FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('s1',1,'c1','call_started',1767323045678901,'{"tool":"repl"}',NULL);
INSERT INTO "events" VALUES('s1',2,'c1','output',1767323045678901,'{"stream":"stdout"}',X'00FF0A');
INSERT INTO "events" VALUES('s1',3,'c1','call_finished',1767323045678901,'{"status":"ok","text":"\ud800\u0000"}',NULL);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version','1');
CREATE TABLE sessions (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	state TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "sessions" VALUES('s1','acme','open','{"tool":"repl","lone":"\ud800"}',1767323045678901,1767323045678901);
CREATE INDEX sessions_by_tenant ON sessions (tenant, created_at);
CREATE INDEX events_by_call ON events (session_id, call_id, seq, kind);
COMMIT;
